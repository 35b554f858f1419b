"""Many ranks, many runs: analyses written once over Arrow batches, and the engines they run on."""
