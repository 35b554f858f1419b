/** What views and panels are put together from. */
export { default as BarChart } from "./BarChart.svelte";
export { default as DataTable } from "./DataTable.svelte";
export { default as Distribution } from "./Distribution.svelte";
export { default as HeatCanvas } from "./HeatCanvas.svelte";
export { default as LineChart } from "./LineChart.svelte";
export { default as Panel } from "./Panel.svelte";
export { default as Profile } from "./Profile.svelte";
export { default as Scrolling } from "./Scrolling.svelte";
export { default as Table } from "./Table.svelte";
export { default as Tabs } from "./Tabs.svelte";
