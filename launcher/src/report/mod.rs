//! What prun tells programs, JSON lines, and what it prints.

pub mod jsonl;
pub mod stdout;
