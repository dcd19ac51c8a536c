//! How a chunk travels and is announced; one file each.

pub(crate) mod simple;
