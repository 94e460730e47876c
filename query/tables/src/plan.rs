//! What SQLite may push down: from constraints to a described plan (`addr=, moment<, order=moment desc`), and from the plan
//! and its arguments to bounds. Knows no table.
//!
//! Bounds only narrow: SQLite checks every row again, so values of odd types (text, fractions, negative numbers) need no
//! exactness here, and are left to it. An upper bound leaves out addresses with the top bit set, which are negative to
//! SQLite: those are the kernel's, and no program writes or runs there.

use guest::{GuestAddr, GuestRange, Moment};
use rusqlite::types::ValueRef;
use rusqlite::vtab::{DistinctMode, IndexConstraintOp, IndexInfo};
use store::Order;

/// What a virtual table offers.
pub(crate) struct Shape {
    /// Its columns in order.
    pub(crate) columns: &'static [Column],
    /// The column in whose order rows can come.
    pub(crate) time: usize,
    /// A column that is the same by another name.
    pub(crate) alias: Option<usize>,
    /// Where rows can be counted without being made, if a statement needs no other columns than these, in whose order they can come.
    pub(crate) counted: Option<&'static [usize]>,
}

impl Shape {
    /// Whether a column says when.
    fn is_time(&self, column: usize) -> bool {
        column == self.time || self.alias == Some(column)
    }

    /// Whether a statement that uses the columns of `used`, as SQLite's mask of them, needs no rows but their number.
    fn counts(&self, used: u64) -> bool {
        self.counted
            .is_some_and(|columns| columns.iter().fold(used, |used, column| used & !(1 << column)) == 0)
    }
}

/// A column, as far as planning goes.
#[derive(Clone, Copy)]
pub(crate) struct Column {
    /// Its name.
    pub(crate) name: &'static str,
    /// The share of all rows that an equality leaves, as a negative power of ten; `None` where nothing is pushed down.
    pub(crate) selectivity: Option<i32>,
    /// Whether it holds text, of which only an equality is pushed down.
    pub(crate) text: bool,
}

impl Column {
    /// A column that can be pushed down.
    pub(crate) const fn pushed(name: &'static str, selectivity: i32) -> Self {
        Self { name, selectivity: Some(selectivity), text: false }
    }

    /// A column of text whose equality can be pushed down.
    pub(crate) const fn named(name: &'static str, selectivity: i32) -> Self {
        Self { name, selectivity: Some(selectivity), text: true }
    }

    /// A column that SQLite checks.
    pub(crate) const fn plain(name: &'static str) -> Self {
        Self { name, selectivity: None, text: false }
    }
}

/// For each column the values that can match, inclusive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Bounds {
    ranges: Vec<(u64, u64)>,
    texts: Vec<Option<String>>,
    /// Nothing can match (a comparison with NULL).
    pub(crate) empty: bool,
    /// The order asked for.
    pub(crate) order: Order,
    /// Whether rows need only be counted, and how.
    pub(crate) count: Option<Count>,
}

/// How rows are counted that need not be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Count {
    /// The column in whose order they come, if in any.
    pub(crate) by: Option<usize>,
    /// Whether equal ones may be left out but for one.
    pub(crate) once: bool,
}

const OPERATORS: [(&str, IndexConstraintOp); 6] = [
    ("<=", IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_LE),
    (">=", IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_GE),
    ("<", IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_LT),
    (">", IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_GT),
    // `IS`, which NULL meets, too: that narrows nothing. Comes before what it ends in.
    ("==", IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_IS),
    ("=", IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_EQ),
];

/// Chooses what to push down and tells SQLite, costs included.
pub(crate) fn choose(shape: &Shape, info: &mut IndexInfo) {
    let mut steps = Vec::new();
    let mut cost: f64 = 1e9;
    let usable: Vec<(usize, usize, &str)> = info
        .constraints()
        .enumerate()
        .filter(|(_, constraint)| constraint.is_usable())
        .filter_map(|(index, constraint)| {
            let column = usize::try_from(constraint.column()).ok()?;
            let operator = OPERATORS.iter().find(|(_, op)| *op == constraint.operator())?.0;
            Some((index, column, operator))
        })
        .collect();
    for (index, column, operator) in usable {
        let Some(Column { name, selectivity: Some(power), text }) = shape.columns.get(column) else {
            continue;
        };
        if *text && !operator.starts_with('=') {
            continue;
        }
        steps.push(format!("{name}{operator}"));
        info.constraint_usage(index).set_argv_index(steps.len() as i32);
        cost *= if operator.starts_with('=') { 10f64.powi(-power) } else { 0.3 };
    }
    // Counted rows have other row numbers.
    let by_number = info.constraints().any(|constraint| constraint.column() < 0);
    if shape.counts(info.col_used()) && !by_number {
        choose_count(shape, info, &mut steps);
    } else {
        let mut orders = info.order_bys();
        let order = orders.next().filter(|by| usize::try_from(by.column()).is_ok_and(|c| shape.is_time(c)));
        if let (Some(by), None) = (order, orders.next()) {
            let direction = if by.is_order_by_desc() { " desc" } else { "" };
            steps.push(format!("order={}{direction}", shape.columns[shape.time].name));
            info.set_order_by_consumed(true);
        }
    }
    info.set_estimated_cost(cost.max(10.0));
    info.set_estimated_rows(cost.max(1.0) as i64);
    info.set_idx_str(&steps.join(", "));
}

/// The order of counted rows: those that are equal come one after the other, so that nothing has to be sorted to group them.
fn choose_count(shape: &Shape, info: &mut IndexInfo, steps: &mut Vec<String>) {
    let orders: Vec<(usize, bool)> = info
        .order_bys()
        .map(|by| (usize::try_from(by.column()).unwrap_or(usize::MAX), by.is_order_by_desc()))
        .collect();
    let distinct = matches!(info.distinct(), DistinctMode::Distinct | DistinctMode::DistinctOrdered);
    steps.push("counted".to_owned());
    let Some(&(first, down)) = orders.first() else { return };
    // Any further columns that are counted by break ties.
    let mut columns: Vec<usize> = orders.iter().map(|(column, _)| *column).collect();
    columns.sort_unstable();
    columns.dedup();
    let known = columns.iter().all(|column| shape.counted.unwrap_or_default().contains(column));
    if known && columns.len() == orders.len() && orders.iter().all(|&(_, other)| other == down) {
        let direction = if down { " desc" } else { "" };
        steps.push(format!("order={}{direction}", shape.columns[first].name));
        steps.extend(distinct.then(|| "once".to_owned()));
        info.set_order_by_consumed(true);
    }
}

impl Bounds {
    /// Everything.
    pub(crate) fn all(shape: &Shape) -> Self {
        let columns = shape.columns.len();
        let (ranges, texts) = (vec![(0, u64::MAX); columns], vec![None; columns]);
        Self { ranges, texts, empty: false, order: Order::Ascending, count: None }
    }

    /// From a plan that [`choose`] made and the values of its constraints.
    pub(crate) fn from_plan<'a>(
        shape: &Shape,
        plan: &str,
        values: impl IntoIterator<Item = ValueRef<'a>>,
    ) -> Self {
        let mut bounds = Self::all(shape);
        let mut values = values.into_iter();
        for step in plan.split(", ").filter(|step| !step.is_empty()) {
            if let Some(order) = step.strip_prefix("order=") {
                let up = order.strip_suffix(" desc");
                bounds.order = if up.is_some() { Order::Descending } else { Order::Ascending };
                if let Some(count) = &mut bounds.count {
                    let name = up.unwrap_or(order);
                    count.by = shape.columns.iter().position(|column| column.name == name);
                }
                continue;
            }
            match (step, &mut bounds.count) {
                ("counted", count) => {
                    *count = Some(Count { by: None, once: false });
                    continue;
                }
                ("once", Some(count)) => {
                    count.once = true;
                    continue;
                }
                _ => {}
            }
            let Some(value) = values.next() else { break };
            let operator = OPERATORS.iter().find_map(|(text, _)| step.strip_suffix(text).map(|n| (n, *text)));
            let Some((name, operator)) = operator else { continue };
            let column = shape.columns.iter().position(|c| c.name == name);
            let column = column.map(|column| if shape.is_time(column) { shape.time } else { column });
            match (column, value) {
                (Some(column), ValueRef::Text(text)) if shape.columns[column].text => {
                    bounds.texts[column] = std::str::from_utf8(text).ok().map(str::to_owned);
                }
                (Some(_), ValueRef::Null) if operator == "==" => {}
                (Some(column), ValueRef::Null) if shape.columns[column].text => bounds.empty = true,
                (Some(column), _) if !shape.columns[column].text => bounds.narrow(column, operator, value),
                _ => {}
            }
        }
        bounds.empty |= bounds.ranges.iter().any(|(low, high)| low > high);
        bounds
    }

    fn narrow(&mut self, column: usize, operator: &str, value: ValueRef<'_>) {
        let range = &mut self.ranges[column];
        let is_equal = matches!(operator, "=" | "==");
        let (low, high) = match value {
            ValueRef::Null => return self.empty = true,
            ValueRef::Integer(n) if is_equal => (n as u64, n as u64),
            ValueRef::Integer(n) => match u64::try_from(n) {
                Ok(n) => (n, n),
                Err(_) => return,
            },
            ValueRef::Real(f) if (0.0..9.2e18).contains(&f) => (f.floor() as u64, f.ceil() as u64),
            _ => return,
        };
        let exact = low == high;
        match operator {
            "=" | "==" => *range = (range.0.max(low), range.1.min(high)),
            ">" if exact => range.0 = range.0.max(low.saturating_add(1)),
            "<" if exact && high == 0 => self.empty = true,
            "<" if exact => range.1 = range.1.min(high - 1),
            ">" | ">=" => range.0 = range.0.max(low),
            _ => range.1 = range.1.min(high),
        }
    }

    /// The values of `column` that can match, inclusive.
    pub(crate) fn range(&self, column: usize) -> (u64, u64) {
        self.ranges[column]
    }

    /// The one value of `column` that can match, if there is but one.
    pub(crate) fn only(&self, column: usize) -> Option<u64> {
        let (low, high) = self.ranges[column];
        (low == high).then_some(low)
    }

    /// The text that `column` must equal.
    pub(crate) fn text(&self, column: usize) -> Option<&str> {
        self.texts[column].as_deref()
    }

    /// As addresses; `None` for all.
    pub(crate) fn addresses(&self, column: usize) -> Option<GuestRange> {
        let (low, high) = self.ranges[column];
        let all = (low, high) == (0, u64::MAX);
        (!all).then(|| GuestRange { start: GuestAddr(low), end: GuestAddr(high.saturating_add(1)) })
    }

    /// As moments.
    pub(crate) fn moments(&self, column: usize) -> std::ops::Range<Moment> {
        let (low, high) = self.ranges[column];
        Moment(low)..Moment(high.saturating_add(1))
    }

    /// As a dense number.
    pub(crate) fn id(&self, column: usize) -> Option<u32> {
        u32::try_from(self.only(column)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape {
        columns: &[
            Column::pushed("moment", 8),
            Column::pushed("addr", 6),
            Column::plain("value"),
            Column::named("function", 3),
        ],
        time: 0,
        alias: None,
        counted: Some(&[1]),
    };

    #[track_caller]
    fn check(plan: &str, values: &[ValueRef<'_>], expected: Option<[(u64, u64); 2]>) {
        let bounds = Bounds::from_plan(&SHAPE, plan, values.iter().copied());
        let actual = (!bounds.empty).then(|| [bounds.range(0), bounds.range(1)]);
        assert_eq!(actual, expected, "{plan} {values:?}");
    }

    #[test]
    fn plans_become_bounds() {
        const ALL: (u64, u64) = (0, u64::MAX);
        let int = ValueRef::Integer;
        check("", &[], Some([ALL, ALL]));
        check("addr=, moment<", &[int(7), int(100)], Some([(0, 99), (7, 7)]));
        check("moment>=, moment<=", &[int(5), int(9)], Some([(5, 9), ALL]));
        check("moment>, moment<", &[int(5), int(6)], None);
        check("moment<", &[int(0)], None);
        check("moment<", &[ValueRef::Real(9.5)], Some([(0, 10), ALL]));
        check("moment>", &[ValueRef::Real(9.5)], Some([(9, u64::MAX), ALL]));
        check("addr=", &[int(-1)], Some([ALL, (u64::MAX, u64::MAX)]));
        check("addr>", &[int(-1)], Some([ALL, ALL]));
        check("addr=", &[ValueRef::Null], None);
        check("addr==", &[ValueRef::Null], Some([ALL, ALL]));
        check("addr==", &[int(7)], Some([ALL, (7, 7)]));
        check("function==", &[ValueRef::Null], Some([ALL, ALL]));
        check("addr=", &[ValueRef::Text(b"7")], Some([ALL, ALL]));
        let bounds = Bounds::from_plan(&SHAPE, "addr=, order=moment desc", [int(1)]);
        assert_eq!(bounds.order, Order::Descending);
        let bounds = Bounds::from_plan(&SHAPE, "function=, addr=", [ValueRef::Text(b"main"), int(3)]);
        assert_eq!((bounds.text(3), bounds.only(1)), (Some("main"), Some(3)));
        check("function=", &[ValueRef::Null], None);
        let bounds = Bounds::from_plan(&SHAPE, "addr>, counted, order=addr desc, once", [int(3)]);
        assert_eq!(bounds.count, Some(Count { by: Some(1), once: true }));
        assert_eq!((bounds.order, bounds.range(1)), (Order::Descending, (4, u64::MAX)));
    }

    #[test]
    fn rows_are_counted_where_nothing_else_is_used() {
        assert!(SHAPE.counts(0) && SHAPE.counts(0b10));
        assert!(!SHAPE.counts(0b01) && !SHAPE.counts(0b110));
    }
}
