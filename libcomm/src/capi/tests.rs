//! That the header and this interface are the same, and what the border lets through.

use super::codes::*;
use super::*;
use crate::types::{DataType, Op};

const HEADER: &str = include_str!("../../include/libcomm.h");

/// `name = number` of all constants that C sees.
fn constants() -> Vec<(String, i64)> {
    let codes = CODES.iter().map(|(name, number)| (name.to_string(), i64::from(*number)));
    let types = DataType::ALL.iter().map(|t| (format!("COMM_{}", t.to_string().to_uppercase()), *t as i64));
    let ops = Op::ALL.iter().map(|op| (format!("COMM_{}", op.to_string().to_uppercase()), *op as i64));
    codes.chain(types).chain(ops).collect()
}

#[test]
fn the_header_has_every_constant_with_its_number_and_no_other() {
    let found: Vec<(String, i64)> = HEADER
        .lines()
        .filter_map(|line| line.trim().strip_prefix("COMM_")?.split_once(" = "))
        .map(|(name, rest)| {
            let number = rest.split([',', ' ']).next().unwrap();
            (format!("COMM_{name}"), number.parse().unwrap())
        })
        .collect();
    assert_eq!(found, constants());
    assert!(HEADER.contains(&format!("#define COMM_VERSION {VERSION}\n")), "COMM_VERSION is {VERSION}");
}

/// A Rust type as the header spells it.
fn c_type(rust: &str) -> &'static str {
    match rust {
        "*mut *mut Comm" => "comm_t **",
        "*mut Comm" => "comm_t *",
        "*mut *mut c_void" => "void **",
        "*const Comm" => "const comm_t *",
        "*const c_void" => "const void *",
        "*mut c_void" => "void *",
        "*mut *mut CRequest" => "comm_request_t **",
        "*mut c_int" => "int *",
        "*const usize" => "const size_t *",
        "*const c_char" => "const char *",
        "c_uint" => "unsigned ",
        "c_int" => "int ",
        "usize" => "size_t ",
        "f64" => "double ",
        other => panic!("no C type for {other}"),
    }
}

/// `comm_result_t` and the like are the ints that they are in Rust.
fn plain(prototype: &str) -> String {
    let plain =
        prototype.replace("comm_result_t ", "int ").replace("comm_type_t ", "int ").replace("comm_op_t ", "int ");
    plain.split_whitespace().collect::<Vec<_>>().join(" ").replace("( ", "(").replace(" )", ")")
}

fn rust_prototypes() -> Vec<String> {
    let source = concat!(
        include_str!("../capi.rs"),
        include_str!("calls.rs"),
        include_str!("device.rs"),
        include_str!("requests.rs")
    );
    let functions =
        source.split("#[unsafe(no_mangle)]\n").skip(1).filter_map(|rest| rest.split_once("extern \"C\" fn "));
    let prototype = |(_, rest): (&str, &str)| {
        let (name, rest) = rest.split_once('(').unwrap();
        let (arguments, rest) = rest.split_once(')').unwrap();
        let result = rest.split_once("-> ").unwrap().1.split_once(" {").unwrap().0;
        let arguments: Vec<String> = arguments
            .split(',')
            .map(str::trim)
            .filter(|argument| !argument.is_empty())
            .map(|argument| {
                let (name, rust) = argument.split_once(": ").unwrap();
                format!("{}{}", c_type(rust), name.trim_end_matches('_'))
            })
            .collect();
        let arguments = if arguments.is_empty() { "void".to_owned() } else { arguments.join(", ") };
        format!("{}{name}({arguments});", c_type(result))
    };
    let mut all: Vec<String> = functions.map(prototype).collect();
    all.sort();
    all
}

#[test]
fn the_header_declares_what_rust_defines() {
    let without_comments: String = HEADER.split("/*").map(|part| part.split_once("*/").map_or(part, |p| p.1)).collect();
    let declared = without_comments.split("\nCOMM_API ").skip(1);
    let mut declared: Vec<String> =
        declared.map(|rest| plain(&format!("{};", rest.split_once(';').unwrap().0))).collect();
    declared.sort();
    assert_eq!(declared, rust_prototypes());
}

#[test]
fn a_panic_becomes_a_code_and_a_sentence() {
    assert_eq!(guarded(|| panic!("on purpose")), INTERNAL);
    // SAFETY: a string of ours.
    let text = unsafe { CStr::from_ptr(comm_last_error()) };
    assert_eq!(text.to_str().unwrap(), "libcomm failed: on purpose");
}

#[test]
fn null_communicators_are_refused() {
    // SAFETY: null is allowed everywhere.
    unsafe {
        assert_eq!(comm_init(std::ptr::null_mut()), INVALID_ARGUMENT);
        assert_eq!(calls::comm_barrier(std::ptr::null()), INVALID_ARGUMENT);
        assert_eq!(comm_rank(std::ptr::null()), -1);
        assert_eq!(comm_finalize(std::ptr::null_mut()), OK);
    }
}
