//! The views over the index's small tables: the columns that users see, which stay as the schema below them changes.
//!
//! They are temporary views of the connection and hide the tables of the same names, which are still there as `main.NAME`.

/// Creates the views.
pub(crate) const CREATE: &str = "
CREATE TEMP VIEW tasks AS SELECT task, tid, pid, parent, first, last, exit_code, signal,
  (SELECT argv FROM main.images AS i WHERE i.task = t.task ORDER BY i.event DESC LIMIT 1) AS command
  FROM main.tasks AS t;

CREATE TEMP VIEW images AS SELECT moment, task, space, exe, argv, cwd, event FROM main.images;

CREATE TEMP VIEW syscalls AS SELECT moment, task, space, name,
  call_text(nr, a0, a1, a2, a3, a4, a5, result) AS call, result, fd, path, \"offset\", nr, a0, a1, a2, a3, a4, a5, event
  FROM main.syscalls;

CREATE TEMP VIEW signals AS SELECT moment, task, space, signo, signal_name(signo) AS name, action, handler, pc, code, addr,
  event FROM main.signals;

CREATE TEMP VIEW switches AS SELECT moment, task, next, reason, pc, event FROM main.switches;

CREATE TEMP VIEW mappings AS SELECT space, start, \"end\",
  (CASE WHEN prot & 1 THEN 'r' ELSE '-' END) || (CASE WHEN prot & 2 THEN 'w' ELSE '-' END) ||
  (CASE WHEN prot & 4 THEN 'x' ELSE '-' END) || (CASE WHEN shared THEN 's' ELSE 'p' END) AS prot,
  file_offset, name, since, until, mapped_at, mapped_by AS event, object, object_offset FROM main.mappings;

CREATE TEMP VIEW output AS SELECT moment, task, stream, CAST(bytes AS TEXT) AS text, fd, len, event FROM main.output;
";
