//! What prun tells programs: JSON lines.

pub mod jsonl;
