"""The process border: jobs, the handle of a process, pools of workers. This is the parent's side."""
