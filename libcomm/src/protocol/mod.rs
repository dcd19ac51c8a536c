//! How a chunk travels and is announced; one file each.

pub(crate) mod channel;
pub(crate) mod simple;
