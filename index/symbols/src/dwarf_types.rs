//! Types in the debug information of one file: which type a variable has, and what its members, its elements and what it
//! points to are. Knows nothing of where the file is mapped.

use std::path::Path;
use std::sync::Arc;

use gimli::constants::{self as dw, DwTag};
use gimli::{AttributeValue, DebugInfoOffset, EndianSlice, LittleEndian, Operation, UnitOffset, UnitType};

use crate::split::{Finder, Kept};
use crate::value::{Bits, Value, ValueKind};

type Slice = EndianSlice<'static, LittleEndian>;
type Unit = gimli::Unit<Slice>;
type Entry = gimli::DebuggingInformationEntry<Slice, usize>;

/// How many types are looked through in search of the one meant (typedefs, qualifiers, bases): more than any program nests.
const MAX_DEPTH: usize = 64;

/// The types of one file.
pub(crate) struct Types {
    units: Vec<(Source, Unit)>,
    // What split units borrow: dropped last.
    _kept: Kept,
}

/// What a unit is read from: the file itself, or what it leaves to another.
type Source = Arc<gimli::Dwarf<Slice>>;

/// One type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Type {
    unit: usize,
    at: UnitOffset,
    /// How many dimensions of an array are indexed already.
    indexed: usize,
}

/// A part of a type: where it is, what it is, and its size in bytes where the type does not say (bit fields).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Member {
    pub(crate) offset: u64,
    pub(crate) ty: Type,
    pub(crate) size: Option<u64>,
    pub(crate) bits: Option<Bits>,
}

/// What a type is, as far as walking through it goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shape {
    /// A pointer to something, `None` for `void`.
    Pointer(Option<Type>),
    /// A C++ reference, which is a pointer that is followed by itself.
    Reference(Type),
    /// Elements, and how many; `None` where the type leaves that open.
    Array(Type, Option<u64>),
    /// Something with members, or without parts.
    Other,
}

impl Types {
    /// Over the debug information of a file.
    pub(crate) fn new(dwarf: Source, original: &Path) -> Self {
        let mut units = Vec::new();
        let mut split = Finder::new(&dwarf, original);
        let own = units_of(&dwarf);
        if own.iter().any(|unit| unit.dwo_id.is_some()) {
            split.open_package();
        }
        for unit in own {
            let Some(other) = split.find(&unit) else {
                units.push((dwarf.clone(), unit));
                continue;
            };
            for mut found in units_of(&other) {
                found.copy_relocated_attributes(&unit);
                units.push((other.clone(), found));
            }
        }
        let kept = split.kept();
        Self { units, _kept: kept }
    }

    fn unit(&self, unit: usize) -> &Unit {
        &self.units[unit].1
    }

    /// The type of the variable at a link-time address.
    pub(crate) fn of_variable(&self, addr: u64) -> Option<Type> {
        (0..self.units.len()).find_map(|unit| {
            self.find(unit, |entry| entry.tag == dw::DW_TAG_variable && self.is_at(unit, entry, addr))
                .and_then(|entry| self.type_of(unit, &entry))
        })
    }

    /// The function whose static variable lies at a link-time address.
    pub(crate) fn function_of(&self, addr: u64) -> Option<String> {
        (0..self.units.len()).find_map(|unit| {
            let mut functions: Vec<Entry> = Vec::new();
            let mut entries = self.unit(unit).entries();
            while let Ok(Some(entry)) = entries.next_dfs() {
                functions.truncate(functions.iter().take_while(|f| f.depth < entry.depth).count());
                match entry.tag {
                    dw::DW_TAG_subprogram => functions.push(entry.clone()),
                    dw::DW_TAG_variable if self.is_at(unit, entry, addr) => {
                        return functions.last().and_then(|f| self.own_name(unit, f));
                    }
                    _ => {}
                }
            }
            None
        })
    }

    /// An entry's name, or that of the declaration it completes.
    fn own_name(&self, unit: usize, entry: &Entry) -> Option<String> {
        self.name(unit, entry).or_else(|| {
            let (unit, at) = self.declaration(unit, entry)?;
            self.name(unit, &self.entry(unit, at)?)
        })
    }

    /// What an entry completes.
    fn declaration(&self, unit: usize, entry: &Entry) -> Option<(usize, UnitOffset)> {
        let other = [dw::DW_AT_specification, dw::DW_AT_abstract_origin];
        let value = other.into_iter().find_map(|attribute| entry.attr_value(attribute))?;
        self.reference(unit, value)
    }

    /// What a type is, typedefs and qualifiers aside.
    pub(crate) fn shape(&self, ty: Type) -> Shape {
        let Some((ty, entry)) = self.stripped(ty) else { return Shape::Other };
        let inner = self.type_of(ty.unit, &entry);
        match (entry.tag, inner) {
            (dw::DW_TAG_pointer_type, inner) => Shape::Pointer(inner),
            (dw::DW_TAG_reference_type | dw::DW_TAG_rvalue_reference_type, Some(inner)) => {
                Shape::Reference(inner)
            }
            (dw::DW_TAG_array_type, Some(inner)) => {
                let counts = self.dimensions(ty);
                let count = counts.get(ty.indexed).copied().flatten();
                let element = match counts.len() - ty.indexed.min(counts.len()) {
                    0 | 1 => inner,
                    _ => Type { indexed: ty.indexed + 1, ..ty },
                };
                Shape::Array(element, count)
            }
            _ => Shape::Other,
        }
    }

    /// What the bytes of a type stand for, where it has no parts but letters.
    pub(crate) fn value(&self, ty: Type) -> Option<Value> {
        let (inner, entry) = self.stripped(ty)?;
        let size = self.size(ty)?;
        let kind = match (entry.tag, self.shape(ty)) {
            (dw::DW_TAG_base_type, _) => kind_of(&entry)?,
            (dw::DW_TAG_enumeration_type, _) => {
                let underlying = self.type_of(inner.unit, &entry).and_then(|ty| self.value(ty));
                underlying.map_or(ValueKind::Unsigned, |value| value.kind)
            }
            (_, Shape::Pointer(_) | Shape::Reference(_)) => ValueKind::Pointer,
            (_, Shape::Array(element, _)) if self.value(element)?.kind == ValueKind::Character => {
                ValueKind::Text
            }
            _ => return None,
        };
        Some(Value { kind, size, bits: None })
    }

    /// Size in bytes, where it is known.
    pub(crate) fn size(&self, ty: Type) -> Option<u64> {
        let (ty, entry) = self.stripped(ty)?;
        if entry.tag == dw::DW_TAG_array_type {
            let Shape::Array(element, count) = self.shape(ty) else { return None };
            return self.size(element)?.checked_mul(count?);
        }
        let pointer = matches!(
            entry.tag,
            dw::DW_TAG_pointer_type | dw::DW_TAG_reference_type | dw::DW_TAG_rvalue_reference_type
        );
        number(&entry, dw::DW_AT_byte_size).or(pointer.then_some(8))
    }

    /// The member called `name`, also of an unnamed member or a base class.
    pub(crate) fn member(&self, ty: Type, name: &str) -> Option<Member> {
        self.member_that(ty, name, |_| true)
    }

    /// The first member of that name which is `wanted`: bases may have several.
    pub(crate) fn member_that(
        &self,
        ty: Type,
        name: &str,
        wanted: impl Fn(&Member) -> bool,
    ) -> Option<Member> {
        let mut named = self.parts(ty, 0).into_iter().filter(|(known, _)| known == name);
        named.find(|(_, member)| wanted(member)).map(|(_, member)| member)
    }

    /// The names of all members.
    pub(crate) fn members(&self, ty: Type) -> Vec<String> {
        self.parts(ty, 0).into_iter().map(|(name, _)| name).collect()
    }

    /// The named members of a type, those of unnamed members and bases after its own.
    fn parts(&self, ty: Type, depth: usize) -> Vec<(String, Member)> {
        let Some((ty, entry)) = self.stripped(ty).filter(|_| depth < MAX_DEPTH) else { return Vec::new() };
        let mut own = Vec::new();
        let mut inherited = Vec::new();
        for child in self.children(ty, entry.tag) {
            let Some(member) = self.placed(ty.unit, &child) else { continue };
            match self.name(ty.unit, &child) {
                Some(name) if child.tag == dw::DW_TAG_member => own.push((name, member)),
                _ => inherited.extend(self.parts(member.ty, depth + 1).into_iter().map(|(name, part)| {
                    (name, Member { offset: member.offset.wrapping_add(part.offset), ..part })
                })),
            }
        }
        own.extend(inherited);
        own
    }

    /// The members and bases that a type lists; of an enumeration with contents those of its variants.
    fn children(&self, ty: Type, tag: DwTag) -> Vec<Entry> {
        let holds = matches!(tag, dw::DW_TAG_structure_type | dw::DW_TAG_class_type | dw::DW_TAG_union_type);
        let mut out = Vec::new();
        let Ok(mut entries) = self.unit(ty.unit).entries_at_offset(ty.at) else { return out };
        let Ok(Some(_)) = entries.next_dfs() else { return out };
        // The depth at which what was met last holds members of the type itself.
        let mut inside = 1;
        while let Ok(Some(entry)) = entries.next_dfs() {
            if entry.depth <= 0 || !holds {
                break;
            }
            inside = inside.min(entry.depth);
            if entry.depth != inside {
                continue;
            }
            match entry.tag {
                dw::DW_TAG_member | dw::DW_TAG_inheritance => out.push(entry.clone()),
                dw::DW_TAG_variant_part | dw::DW_TAG_variant => inside = entry.depth + 1,
                _ => {}
            }
        }
        out
    }

    /// Where a member or base is; `None` for static members and for bases that are found at run time.
    fn placed(&self, unit: usize, entry: &Entry) -> Option<Member> {
        let ty = self.type_of(unit, entry)?;
        let offset = match entry.attr_value(dw::DW_AT_data_member_location) {
            Some(AttributeValue::Exprloc(expression)) => {
                let mut operations = expression.operations(self.unit(unit).encoding());
                let Ok(Some(Operation::PlusConstant { value })) = operations.next() else { return None };
                value
            }
            Some(value) => value.udata_value()?,
            None if entry.attr(dw::DW_AT_external).is_some() => return None,
            None if entry.attr(dw::DW_AT_declaration).is_some() => return None,
            None => 0,
        };
        let Some(bits) = number(entry, dw::DW_AT_bit_size) else {
            return Some(Member { offset, ty, size: None, bits: None });
        };
        // Counted from the start of the type, or (before DWARF 4) from the upper end of a storage unit.
        let first = number(entry, dw::DW_AT_data_bit_offset).or_else(|| {
            let unit = number(entry, dw::DW_AT_byte_size).or_else(|| self.size(ty))?;
            let above = number(entry, dw::DW_AT_bit_offset)?;
            (offset.checked_add(unit)?.checked_mul(8)?).checked_sub(above.checked_add(bits)?)
        })?;
        let size = (first % 8).checked_add(bits)?.div_ceil(8);
        let bits = Some(Bits { first: first % 8, count: bits });
        Some(Member { offset: first / 8, ty, size: Some(size), bits })
    }

    /// The numbers of elements of an array, dimension by dimension.
    fn dimensions(&self, ty: Type) -> Vec<Option<u64>> {
        let mut out = Vec::new();
        let Ok(mut entries) = self.unit(ty.unit).entries_at_offset(ty.at) else { return out };
        let Ok(Some(_)) = entries.next_dfs() else { return out };
        while let Ok(Some(entry)) = entries.next_dfs() {
            match entry.depth {
                ..=0 => break,
                1 if entry.tag == dw::DW_TAG_subrange_type => {
                    let last = || number(entry, dw::DW_AT_upper_bound)?.checked_add(1);
                    out.push(number(entry, dw::DW_AT_count).or_else(last));
                }
                _ => {}
            }
        }
        out
    }

    /// A type behind typedefs and qualifiers, as it is defined where that is elsewhere.
    fn stripped(&self, ty: Type) -> Option<(Type, Entry)> {
        let mut ty = ty;
        for _ in 0..MAX_DEPTH {
            let entry = self.entry(ty.unit, ty.at)?;
            ty = match entry.tag {
                dw::DW_TAG_typedef
                | dw::DW_TAG_const_type
                | dw::DW_TAG_volatile_type
                | dw::DW_TAG_restrict_type
                | dw::DW_TAG_atomic_type => self.type_of(ty.unit, &entry)?,
                _ if entry.attr(dw::DW_AT_declaration).is_some() => self.definition(ty.unit, &entry)?,
                _ => return Some((ty, entry)),
            };
        }
        None
    }

    /// The definition of a type that is only declared here.
    fn definition(&self, unit: usize, declared: &Entry) -> Option<Type> {
        if let Some(signature) = declared.attr_value(dw::DW_AT_signature) {
            let (unit, at) = self.reference(unit, signature)?;
            return Some(Type { unit, at, indexed: 0 });
        }
        let name = self.name(unit, declared)?;
        (0..self.units.len()).find_map(|unit| {
            let defines = |entry: &Entry| {
                entry.tag == declared.tag
                    && entry.attr(dw::DW_AT_declaration).is_none()
                    && self.name(unit, entry).is_some_and(|known| known == name)
            };
            self.find(unit, defines).map(|entry| Type { unit, at: entry.offset, indexed: 0 })
        })
    }

    fn find(&self, unit: usize, wanted: impl Fn(&Entry) -> bool) -> Option<Entry> {
        let mut entries = self.unit(unit).entries();
        while let Ok(Some(entry)) = entries.next_dfs() {
            if wanted(entry) {
                return Some(entry.clone());
            }
        }
        None
    }

    /// Whether a variable lies at `addr`, always and as a whole.
    fn is_at(&self, unit: usize, entry: &Entry, addr: u64) -> bool {
        let Some(AttributeValue::Exprloc(expression)) = entry.attr_value(dw::DW_AT_location) else {
            return false;
        };
        let mut operations = expression.operations(self.unit(unit).encoding());
        let at = match operations.next() {
            Ok(Some(Operation::Address { address })) => Some(address),
            Ok(Some(Operation::AddressIndex { index })) => {
                self.units[unit].0.address(self.unit(unit), index).ok()
            }
            _ => None,
        };
        at == Some(addr) && matches!(operations.next(), Ok(None))
    }

    /// The type that an entry names, or that of the declaration it completes.
    fn type_of(&self, unit: usize, entry: &Entry) -> Option<Type> {
        let mut entry = (unit, entry.clone());
        for _ in 0..MAX_DEPTH {
            if let Some(value) = entry.1.attr_value(dw::DW_AT_type) {
                let (unit, at) = self.reference(entry.0, value)?;
                return Some(Type { unit, at, indexed: 0 });
            }
            let (unit, at) = self.declaration(entry.0, &entry.1)?;
            entry = (unit, self.entry(unit, at)?);
        }
        None
    }

    fn reference(&self, unit: usize, value: AttributeValue<Slice>) -> Option<(usize, UnitOffset)> {
        match value {
            AttributeValue::UnitRef(at) => Some((unit, at)),
            AttributeValue::DebugInfoRef(offset) => self.unit_at(unit, offset),
            AttributeValue::DebugTypesRef(signature) => {
                self.units.iter().enumerate().find_map(|(unit, (_, of))| match of.header.type_() {
                    UnitType::Type { type_signature, type_offset } if type_signature == signature => {
                        Some((unit, type_offset))
                    }
                    _ => None,
                })
            }
            _ => None,
        }
    }

    /// The unit in which an offset of the section lies that `unit` is in, and where in it.
    fn unit_at(&self, unit: usize, offset: DebugInfoOffset) -> Option<(usize, UnitOffset)> {
        let source = &self.units[unit].0;
        self.units.iter().enumerate().find_map(|(number, (other, unit))| {
            Some((number, offset.to_unit_offset(&unit.header).filter(|_| Arc::ptr_eq(source, other))?))
        })
    }

    fn entry(&self, unit: usize, at: UnitOffset) -> Option<Entry> {
        let mut entries = self.unit(unit).entries_at_offset(at).ok()?;
        entries.next_dfs().ok()?.cloned()
    }

    fn name(&self, unit: usize, entry: &Entry) -> Option<String> {
        let value = entry.attr_value(dw::DW_AT_name)?;
        let name = self.units[unit].0.attr_string(self.unit(unit), value).ok()?;
        Some(name.to_string_lossy().into_owned())
    }
}

fn units_of(dwarf: &gimli::Dwarf<Slice>) -> Vec<Unit> {
    let mut units = Vec::new();
    let mut headers = dwarf.units();
    while let Ok(Some(header)) = headers.next() {
        units.extend(dwarf.unit(header));
    }
    // Before DWARF 5 types that have units of their own lie in a section of their own.
    let mut headers = dwarf.type_units();
    while let Ok(Some(header)) = headers.next() {
        units.extend(dwarf.unit(header));
    }
    units
}

fn kind_of(base: &Entry) -> Option<ValueKind> {
    let AttributeValue::Encoding(encoding) = base.attr_value(dw::DW_AT_encoding)? else { return None };
    Some(match encoding {
        dw::DW_ATE_boolean => ValueKind::Boolean,
        dw::DW_ATE_float => ValueKind::Float,
        dw::DW_ATE_signed => ValueKind::Signed,
        dw::DW_ATE_signed_char => ValueKind::Character,
        dw::DW_ATE_unsigned | dw::DW_ATE_unsigned_char | dw::DW_ATE_UTF => ValueKind::Unsigned,
        dw::DW_ATE_address => ValueKind::Pointer,
        _ => return None,
    })
}

fn number(entry: &Entry, attribute: gimli::DwAt) -> Option<u64> {
    entry.attr_value(attribute)?.udata_value()
}
