//! Containers of libraries and languages whose elements people name as if they were arrays, and smart pointers: where the elements, or a
//! pointer to them, lie inside, by the names of members in the debug information.

use crate::dwarf_types::{Member, Shape, Type, Types};

/// What a container has inside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Inside {
    /// The elements, or the pointer to the first.
    pub(crate) elements: Member,
    /// How many there are.
    pub(crate) extent: Extent,
}

/// Where a container says how many elements it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Extent {
    /// Nowhere, or the type does.
    Unknown,
    /// The number lies at this offset.
    Length(u64),
    /// A pointer behind the last one does; each has this size.
    End(u64, u64),
}

/// A kind of container.
struct Kind {
    /// From it to its elements, member by member.
    elements: &'static [&'static str],
    /// To their number.
    length: &'static [&'static str],
    /// To the pointer behind the last.
    end: &'static [&'static str],
}

/// A kind that does not say how many elements it has.
const fn bare(elements: &'static [&'static str]) -> Kind {
    Kind { elements, length: &[], end: &[] }
}

/// A kind with a number of elements.
const fn counted(elements: &'static [&'static str], length: &'static [&'static str]) -> Kind {
    Kind { elements, length, end: &[] }
}

/// A kind with a pointer to where they end.
const fn ended(elements: &'static [&'static str], end: &'static [&'static str]) -> Kind {
    Kind { elements, length: &[], end }
}

const KINDS: [Kind; 10] = [
    // libstdc++: vector, array, string; unique_ptr, shared_ptr.
    ended(&["_M_impl", "_M_start"], &["_M_impl", "_M_finish"]),
    bare(&["_M_elems"]),
    counted(&["_M_dataplus", "_M_p"], &["_M_string_length"]),
    bare(&["_M_t", "_M_t", "_M_head_impl"]),
    bare(&["_M_ptr"]),
    // libc++: vector, array.
    ended(&["__begin_"], &["__end_"]),
    bare(&["__elems_"]),
    // Go: slices, strings.
    counted(&["array"], &["len"]),
    counted(&["str"], &["len"]),
    // Rust: slices, strings.
    counted(&["data_ptr"], &["length"]),
];

/// What a type has inside, if it is a container.
pub(crate) fn inside(types: &Types, ty: Type) -> Option<Inside> {
    KINDS.iter().find_map(|kind| {
        let elements = walk(types, ty, kind.elements, |member| element(types, member).is_some())?;
        let extent = match (kind.length, kind.end) {
            ([], []) => Extent::Unknown,
            ([], end) => {
                Extent::End(walk(types, ty, end, |_| true)?.offset, types.size(element(types, &elements)?)?)
            }
            (length, _) => Extent::Length(walk(types, ty, length, |_| true)?.offset),
        };
        Some(Inside { elements, extent })
    })
}

/// The type of the elements that a member has or points to.
fn element(types: &Types, member: &Member) -> Option<Type> {
    match types.shape(member.ty) {
        Shape::Pointer(Some(element)) | Shape::Array(element, _) => Some(element),
        _ => None,
    }
}

/// The member at the end of a way through members, which must be `wanted`.
fn walk(types: &Types, ty: Type, way: &[&str], wanted: impl Fn(&Member) -> bool) -> Option<Member> {
    let (last, first) = way.split_last()?;
    let (mut offset, mut ty) = (0u64, ty);
    for name in first {
        let next = types.member(ty, name)?;
        (offset, ty) = (offset.wrapping_add(next.offset), next.ty);
    }
    let found = types.member_that(ty, last, wanted)?;
    Some(Member { offset: offset.wrapping_add(found.offset), ..found })
}
