//! The virtual tables over a synthetic index: what is pushed down gives what a full scan gives, and reads less.
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

extern crate store as backstory_store;

use ::granule;

#[path = "../../../record/trace/tests/empty/mod.rs"]
mod empty;
#[expect(dead_code, reason = "shared with the tests of the codec")]
#[path = "../../../index/granule/tests/made/mod.rs"]
mod made;
#[expect(dead_code, reason = "shared with the tests of the index")]
#[path = "../../../index/store/tests/world/mod.rs"]
mod world;

use backstory_tables::{Database, Format};
use rusqlite::types::Value;
use world::World;

/// An empty trace whose index is that of a synthetic world.
struct Recording {
    _folder: tempfile::TempDir,
    world: World,
    database: Database,
}

fn recording(seed: u64) -> Recording {
    let world = World::new(seed, 2500);
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("trace");
    empty::empty_trace(&dir, world::UUID);
    std::fs::copy(world.folder.path().join("index.db"), dir.join("index.db")).unwrap();
    let database = Database::open(&dir).unwrap();
    Recording { _folder: folder, world, database }
}

impl Recording {
    fn rows(&self, sql: &str) -> Vec<Vec<Value>> {
        let mut statement = self.database.connection().prepare(sql).unwrap();
        let columns = statement.column_count();
        let rows = statement.query_map([], |row| (0..columns).map(|i| row.get(i)).collect()).unwrap();
        rows.collect::<Result<_, _>>().unwrap()
    }

    fn plan(&self, sql: &str) -> String {
        let rows = self.rows(&format!("EXPLAIN QUERY PLAN {sql}"));
        let text = rows.iter().map(|row| match row.last() {
            Some(Value::Text(text)) => text.clone(),
            other => format!("{other:?}"),
        });
        text.collect::<Vec<_>>().join("; ")
    }

    /// Granules decoded by a freshly opened database for `sql`.
    fn decoded(&self, sql: &str) -> u64 {
        let fresh = Database::open(self.database.trace().dir()).unwrap();
        fresh.run(sql, Format::Csv, &mut Vec::new()).unwrap();
        fresh.store().granules_decoded()
    }

    /// A question with what is pushed down, and the same with `+` before every column, which hides it from the planner.
    #[track_caller]
    fn same(&self, table: &str, condition: &str, order: &str) -> usize {
        let pushed = self.rows(&format!("SELECT *, {order} FROM {table} WHERE {condition} ORDER BY {order}"));
        let hidden = condition.replace("moment ", "+moment ").replace("entry ", "+entry ");
        let hidden = ["addr ", "touches ", "pc ", "task ", "space ", "callee ", "caller "]
            .iter()
            .fold(hidden, |text, column| text.replace(column, &format!("+{column}")));
        let direction = if order.ends_with(" DESC") { " DESC" } else { "" };
        let column = order.trim_end_matches(" DESC");
        let scanned = format!("SELECT *, {column} FROM {table} WHERE {hidden} ORDER BY +{column}{direction}");
        let plan = self.plan(&scanned);
        assert!(plan.contains("VIRTUAL TABLE INDEX 0:") && plan.contains("TEMP B-TREE"), "{plan}");
        let mut scanned = self.rows(&scanned);
        // Rows of one moment come in no particular order.
        let key = |row: &Vec<Value>| format!("{row:?}");
        let mut pushed_sorted = pushed.clone();
        pushed_sorted.sort_by_key(key);
        scanned.sort_by_key(key);
        assert_eq!(pushed_sorted, scanned, "{table} WHERE {condition}");
        let moments: Vec<i64> = pushed.iter().map(|row| integer(row.last())).collect();
        assert!(
            moments.is_sorted_by(|a, b| if direction.is_empty() { a <= b } else { a >= b }),
            "{condition}"
        );
        pushed.len()
    }
}

fn integer(value: Option<&Value>) -> i64 {
    match value {
        Some(Value::Integer(n)) => *n,
        other => panic!("{other:?} is no integer"),
    }
}

/// `IS` meets NULL, which `=` does not.
#[test]
fn rows_without_a_value_are_found_by_is() {
    let recording = recording(6);
    let without = recording.rows("SELECT count(*) FROM writes WHERE +pc IS NULL");
    assert!(integer(without[0].last()) > 0);
    for (operator, expected) in [("IS", without), ("=", vec![vec![Value::Integer(0)]])] {
        let sql = format!("SELECT count(*) FROM writes WHERE pc {operator} (SELECT nullif(1, 1))");
        assert_eq!(recording.rows(&sql), expected, "{sql}");
    }
}

/// Rows that are only counted are as many as there are, and come in groups. Asked for moments, they are made.
#[test]
fn rows_that_are_only_counted_are_not_made() {
    let recording = recording(5);
    let pcs = recording.rows("SELECT DISTINCT pc FROM executions ORDER BY moment");
    let Some([Value::Integer(one)]) = pcs.get(pcs.len() / 2).map(Vec::as_slice) else { panic!("{pcs:?}") };
    for (table, columns, condition) in [
        ("executions", "1", "1".to_owned()),
        ("executions", "pc", "1".to_owned()),
        ("executions", "pc, space", "1".to_owned()),
        ("executions", "space, pc", format!("pc < {}", one + 40)),
        ("executions", "pc", format!("pc = {one}")),
        ("executions", "1", format!("pc = {one} OR pc = {} OR pc = {one}", one + 4)),
        ("executions", "space", "space = 1".to_owned()),
        ("writes", "1", "1".to_owned()),
        ("writes", "space", "space = 1".to_owned()),
    ] {
        let group = if columns == "1" { String::new() } else { format!("GROUP BY {columns}") };
        let counted = format!("SELECT {columns}, count(*) FROM {table} WHERE {condition} {group}");
        let made = format!("SELECT {columns}, count(moment) FROM {table} WHERE {condition} {group}");
        let plan = recording.plan(&counted);
        assert!(plan.contains("counted") && !plan.contains("GROUP BY"), "{counted}: {plan}");
        assert!(!recording.plan(&made).contains("counted"));
        let (mut counted, mut made) = (recording.rows(&counted), recording.rows(&made));
        counted.sort_by_key(|row| format!("{row:?}"));
        made.sort_by_key(|row| format!("{row:?}"));
        assert_eq!(counted, made, "{table} {columns} {condition}");
    }
    let by_number = recording.rows("SELECT count(*) FROM executions WHERE rowid = 7");
    assert_eq!(by_number, recording.rows("SELECT count(*) FROM executions WHERE moment = 7"));
    for order in ["pc", "pc DESC", "space, pc"] {
        let distinct = recording.rows(&format!("SELECT DISTINCT pc, space FROM executions ORDER BY {order}"));
        let plain = recording.rows(&format!(
            "SELECT pc, space FROM executions GROUP BY pc, space HAVING min(moment) >= 0 ORDER BY {order}"
        ));
        assert_eq!(distinct.len(), plain.len());
        let key = |rows: &[Vec<Value>], at: usize| rows.iter().map(|row| row[at].clone()).collect::<Vec<_>>();
        let at = usize::from(order.starts_with("space"));
        assert_eq!(key(&distinct, at), key(&plain, at), "{order}");
    }
}

#[test]
fn writes_pushed_down_are_writes_scanned() {
    for seed in 0..2 {
        let run = recording(seed);
        let all = integer(run.rows("SELECT count(*) FROM writes")[0].first());
        assert_eq!(all as usize, run.world.writes.len());
        let mut found = 0;
        for (index, write) in run.world.writes.iter().enumerate().step_by(2003) {
            let (moment, addr, end) = (write.moment, write.addr, write.addr + write.bytes.len() as u64);
            let (task, space) = (write.task, write.space);
            let pc = write.pc.map_or("NULL".to_owned(), |pc| pc.to_string());
            let order = if index % 2 == 0 { "moment" } else { "moment DESC" };
            for condition in [
                format!("addr = {addr}"),
                format!("addr >= {addr} AND addr < {end} AND moment <= {moment}"),
                format!("moment = {moment}"),
                format!("pc = {pc} AND space = {space}"),
                format!("moment > {moment} AND moment < {}", moment + 500),
                format!("task = {task} AND moment BETWEEN {moment} AND {}", moment + 900),
                format!("addr > {addr}.5 AND addr <= {end}.5 AND moment >= {moment}.5"),
                format!("space = {space} AND addr = {addr}.0"),
                format!("addr IN ({addr}, {end}) AND moment > {}", moment / 2),
                "addr = NULL".to_owned(),
                "moment < -1".to_owned(),
            ] {
                found += run.same("writes", &condition, order);
            }
            let either = format!("SELECT count(*) FROM writes WHERE addr = {addr} OR moment = {moment}");
            let scan = format!("SELECT count(*) FROM writes WHERE +addr = {addr} OR +moment = {moment}");
            assert_eq!(run.rows(&either), run.rows(&scan), "OR loses or repeats rows");
        }
        assert!(found > 10, "only {found} rows compared");
    }
}

#[test]
fn touching_writes_share_a_byte() {
    let run = recording(7);
    for write in run.world.writes.iter().step_by(53) {
        let (start, end) =
            (write.addr + write.bytes.len() as u64 / 2, write.addr + write.bytes.len() as u64 + 3);
        let touching = |low: u64, high: u64| {
            let all = run.world.writes.iter();
            all.filter(|w| w.addr < high && w.addr + w.bytes.len() as u64 > low).count()
        };
        let count = |condition: &str| {
            let sql = format!("SELECT count(*) FROM writes WHERE {condition}");
            integer(run.rows(&sql)[0].first()) as usize
        };
        assert_eq!(count(&format!("touches = {start}")), touching(start, start + 1));
        assert_eq!(count(&format!("touches >= {start} AND touches < {end}")), touching(start, end));
    }
}

#[test]
fn values_are_integers_or_blobs() {
    let run = recording(3);
    let rows = run.rows("SELECT moment, addr, size, value, pc, event FROM writes");
    let mut wide = 0;
    for (row, truth) in rows.iter().zip(&run.world.writes) {
        assert_eq!(integer(row.get(2)) as usize, truth.bytes.len());
        match &row[3] {
            Value::Integer(n) => assert_eq!(n.to_le_bytes()[..truth.bytes.len()], truth.bytes[..]),
            Value::Blob(bytes) => {
                assert_eq!(bytes, &truth.bytes);
                wide += 1;
            }
            other => panic!("{other:?}"),
        }
        let expected = (truth.pc.map(|n| n as i64), truth.event.map(|n| n as i64));
        let as_option = |value: &Value| if let Value::Integer(n) = value { Some(*n) } else { None };
        assert_eq!((as_option(&row[4]), as_option(&row[5])), expected);
    }
    assert!(wide > 0);
}

#[test]
fn executions_and_calls_pushed_down_are_those_scanned() {
    let run = recording(11);
    for &(moment, task, space, pc) in run.world.executions.iter().step_by(2003) {
        run.same("executions", &format!("pc = {pc} AND space = {space}"), "moment DESC");
        run.same(
            "executions",
            &format!("moment >= {moment} AND moment < {} AND task = {task}", moment + 40),
            "moment",
        );
    }
    for call in run.world.calls.iter().step_by(61) {
        run.same("calls", &format!("callee = {}", call.callee), "entry DESC");
        run.same("calls", &format!("caller = {} AND entry <= {}", call.site, call.entry), "entry");
        run.same("calls", &format!("task = {} AND entry > {}", call.task, call.entry), "entry");
        let both = format!("moment >= {} AND entry < {}", call.entry, call.entry + 900);
        run.same("calls", &both, "moment DESC");
    }
    let count = integer(run.rows("SELECT count(*) FROM executions")[0].first());
    assert_eq!(count as usize, run.world.executions.len());
}

#[test]
fn plans_say_what_is_pushed_down() {
    let run = recording(1);
    let plan =
        run.plan("SELECT * FROM writes WHERE addr = 0x601000 AND moment < 900 ORDER BY moment DESC LIMIT 1");
    assert_eq!(plan, "SCAN writes VIRTUAL TABLE INDEX 0:addr=, moment<, order=moment desc");
    let plan =
        run.plan("SELECT * FROM executions WHERE pc BETWEEN 1 AND 9 AND function = 'f' ORDER BY moment");
    assert_eq!(plan, "SCAN executions VIRTUAL TABLE INDEX 0:function=, pc>=, pc<=, order=moment");
    let plan = run
        .plan("SELECT * FROM calls c JOIN writes w ON w.moment BETWEEN c.entry AND c.exit WHERE c.task = 1");
    assert_eq!(plan, "SCAN c VIRTUAL TABLE INDEX 0:task=; SCAN w VIRTUAL TABLE INDEX 0:moment>=, moment<=");
}

#[test]
fn registers_come_from_whoever_can_find_them() {
    let run = recording(1);
    let alone = run.database.connection().query_row("SELECT arg(1, 0)", [], |row| row.get::<_, i64>(0));
    assert_eq!(alone.unwrap_err().to_string(), "nothing can replay here");
    run.database.set_registers(std::sync::Arc::new(|moment| {
        let at_end = moment.0 == 9;
        let words = std::array::from_fn(|i| i as u64 + 100 * moment.0);
        (!at_end).then(|| guest::Registers::from_words(words)).ok_or_else(|| "past the end".to_owned())
    }));
    let names = guest::Registers::NAMES;
    let word = |name: &str| names.iter().position(|known| *known == name).unwrap() as i64;
    let rows = run.rows("SELECT arg(3, 0), arg(3, 5), reg(4, 'rip'), arg(NULL, 1)");
    let values = [300 + word("rdi"), 300 + word("r9"), 400 + word("rip")].map(Value::Integer);
    assert_eq!(rows[0][..3], values);
    assert_eq!(rows[0][3], Value::Null);
    for (sql, error) in [
        ("SELECT arg(1, 6)", "arg: 6 is not 0 to 5"),
        ("SELECT reg(1, 'eax')", "reg: no register `eax` (there are r15, "),
        ("SELECT reg(9, 'rax')", "past the end"),
        ("SELECT reg('rax', 9)", "reg(moment, name): the name is text"),
        ("SELECT reg(-1, 'rax')", "a moment is an integer from 0 on"),
        ("SELECT arg(1, 'rdi')", "arg(entry, n): n is a number"),
        ("SELECT sym('main')", "sym and line (pc"),
    ] {
        let failed = run.database.run(sql, Format::Csv, &mut Vec::new()).unwrap_err().to_string();
        assert!(failed.starts_with(error), "{sql}: {failed}");
    }
}

#[test]
fn narrow_questions_read_few_granules() {
    let run = recording(5);
    let all = run.world.granules as u64;
    assert!(all > 20, "{all} granules");
    assert!(run.decoded("SELECT count(moment) FROM writes") >= all);
    let write = run.world.writes.iter().rev().find(|write| write.bytes.len() == 8).unwrap();
    let last =
        format!("SELECT moment FROM writes WHERE touches = {} ORDER BY moment DESC LIMIT 1", write.addr);
    assert!(run.decoded(&last) <= 3, "{}", run.decoded(&last));
    let now = format!("SELECT * FROM writes WHERE moment = {}", write.moment);
    assert!(run.decoded(&now) <= 4, "{}", run.decoded(&now));
    assert!(
        run.decoded("SELECT * FROM writes LIMIT 3") <= 6,
        "{}",
        run.decoded("SELECT * FROM writes LIMIT 3")
    );
    let (moment, ..) = run.world.executions[run.world.executions.len() / 2];
    let ran = format!("SELECT * FROM executions WHERE moment = {moment}");
    assert!(run.decoded(&ran) <= 4, "{}", run.decoded(&ran));
}

#[test]
fn functions_and_views_answer() {
    let run = recording(2);
    let rows = run.rows(
        "SELECT hex(4096), hex(x'0aff'), hex('a'), hex(-1), hex(NULL), sym(0x1234), line(0x1234), sym(NULL)",
    );
    let text = |text: &str| Value::Text(text.to_owned());
    let expected = vec![
        text("0x1000"),
        text("0AFF"),
        text("61"),
        text("0xffffffffffffffff"),
        text(""),
        text("0x1234"),
        Value::Null,
        Value::Null,
    ];
    assert_eq!(rows, [expected]);
    for view in ["tasks", "images", "syscalls", "signals", "switches", "mappings", "output"] {
        run.rows(&format!("SELECT * FROM {view}"));
    }
    let error = run.database.check("DELETE FROM syscalls").unwrap_err().to_string();
    assert_eq!(error, "cannot modify syscalls because it is a view");
    let error = run.database.run("DELETE FROM main.syscalls", Format::Table, &mut Vec::new()).unwrap_err();
    assert_eq!(error.to_string(), "attempt to write a readonly database");
}

#[test]
fn the_reference_names_every_column_and_no_other() {
    let run = recording(2);
    for table in backstory_tables::TABLES {
        let statement = run.database.connection().prepare(&format!("SELECT * FROM {}", table.name)).unwrap();
        let real: Vec<String> = statement.column_names().map(str::to_owned).collect();
        let listed: Vec<&str> = table.columns.iter().map(|(name, _)| *name).collect();
        assert_eq!(real, listed, "{}", table.name);
        for (hidden, _) in table.hidden {
            run.database.check(&format!("SELECT {hidden} FROM {}", table.name)).unwrap();
        }
    }
}
