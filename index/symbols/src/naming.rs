//! Which symbol a name means, and how to name each of several. Knows nothing of parts of variables.

use guest::{GuestAddr, Moment, SpaceId};

use crate::image::Image;
use crate::lookup::{Found, ResolveError, Symbols};
use crate::symtab::{Kind, Symbol, last_part};

/// How many of `LOOKS` find variables: those of the program itself come before all that libraries have.
const FOR_VARIABLES: usize = 3;

/// The most candidates that a message lists.
const MAX_LISTED: usize = 12;

/// How a name is looked up in one file.
type Look = for<'a> fn(&'a Image, &str) -> Vec<Symbol<'a>>;

/// One after the other, until one finds something in some file. Functions last: libraries have many, of all sorts of names, and what is
/// asked about is mostly a variable.
const LOOKS: [Look; 5] = [
    |image, name| {
        let mut found = image.symbols().named(name);
        found.retain(|symbol| symbol.kind != Kind::Function);
        found
    },
    qualified,
    |image, name| image.symbols().ending(name, |kind| matches!(kind, Kind::Object | Kind::ThreadLocal)),
    |image, name| image.symbols().named(name),
    |image, name| image.symbols().ending(name, |kind| kind == Kind::Function),
];

impl Symbols {
    /// The symbol that people call `name`: a variable by its whole name, else by its source file or function, else the one whose
    /// qualified name ends so, first of the program, then of libraries; else a function.
    pub(crate) fn find_symbol(
        &self,
        space: SpaceId,
        moment: Moment,
        name: &str,
    ) -> Result<Found<'_>, ResolveError> {
        let modules = self.modules(space, moment);
        let own = &modules[..modules.len().min(1)];
        let own_variables = LOOKS[..FOR_VARIABLES].iter().map(|look| (look, own));
        for (look, modules) in own_variables.chain(LOOKS.iter().map(|look| (look, &modules[..]))) {
            let mut local = false;
            for &(image, file, bias) in modules {
                let symbols = look(image, name).into_iter();
                let (locals, fixed): (Vec<_>, Vec<_>) = symbols.partition(|s| s.kind == Kind::ThreadLocal);
                local |= !locals.is_empty();
                let found: Vec<_> =
                    fixed.into_iter().map(|symbol| Found { image, symbol, file, bias }).collect();
                match found[..] {
                    [] => {}
                    [only] => return Ok(only),
                    [..] => return Err(ambiguous(name, &found)),
                }
            }
            if local {
                return Err(ResolveError::ThreadLocal { name: name.to_owned() });
            }
        }
        let mut similar: Vec<String> =
            modules.iter().flat_map(|(image, _, _)| image.symbols().similar(name, 5)).take(5).collect();
        similar.dedup();
        Err(ResolveError::NotFound { name: name.to_owned(), space, moment, similar })
    }
}

/// The variables that `name` says the source file or the function of: `b.c:state`, `b.c::state`, `f::calls`.
fn qualified<'a>(image: &'a Image, name: &str) -> Vec<Symbol<'a>> {
    let Some((scope, last)) = name.rsplit_once(':') else { return Vec::new() };
    let scope = scope.trim_end_matches(':').trim_matches('\'');
    let all = image.symbols().variables(last);
    let ends =
        |file: &str| scope.strip_suffix(file).is_some_and(|rest| rest.is_empty() || rest.ends_with('/'));
    let of_file: Vec<_> = all.iter().copied().filter(|symbol| symbol.file.is_some_and(ends)).collect();
    if !of_file.is_empty() {
        return of_file;
    }
    let in_scope = |symbol: &Symbol<'_>| function_of(image, symbol).is_some_and(|function| function == scope);
    all.into_iter().filter(in_scope).collect()
}

fn function_of(image: &Image, symbol: &Symbol<'_>) -> Option<String> {
    image.types()?.function_of(symbol.addr)
}

/// Lists symbols that all have the name, each by what means it alone.
fn ambiguous(name: &str, found: &[Found<'_>]) -> ResolveError {
    let all: Vec<Vec<String>> = found.iter().map(ways).collect();
    let alone = |ways: &Vec<String>| {
        let once = |way: &&String| all.iter().flatten().filter(|other| other == way).count() == 1;
        ways.iter().find(once).cloned().unwrap_or_default()
    };
    let mut candidates: Vec<String> = all.iter().map(alone).collect();
    candidates.sort();
    if candidates.len() > MAX_LISTED {
        let more = candidates.len() - MAX_LISTED;
        candidates.truncate(MAX_LISTED);
        candidates.push(format!("{more} more"));
    }
    ResolveError::Ambiguous { name: name.to_owned(), candidates }
}

/// The ways to name a symbol, the best first; the last is its address.
fn ways(found: &Found<'_>) -> Vec<String> {
    let Found { image, symbol, bias, .. } = found;
    let shown = symbol.name().into_owned();
    let last = last_part(&shown);
    let mut ways = Vec::new();
    if symbol.kind == Kind::Object {
        ways.extend(function_of(image, symbol).map(|function| format!("{function}::{last}")));
        ways.extend(symbol.file.map(|file| format!("{file}:{last}")));
        ways.extend(symbol.file.filter(|_| last != shown).map(|file| format!("{file}:{shown}")));
    }
    let at = if shown.contains("::") { 0 } else { 1.min(ways.len()) };
    ways.insert(at, shown);
    ways.push(GuestAddr(symbol.addr.wrapping_add(*bias)).to_string());
    ways
}
