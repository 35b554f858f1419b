"""The page's other side: REST and a stream on one port, in a process that never imports a framework."""
