//! The results as text and as JSON. Pure.

use std::fmt::Write;

use programs::bench::collective::Collective;
use programs::bench::wire::{Job, Place};
use serde_json::{Value, json};

use super::results::{Measured, Row};
use super::words::type_name;

/// What all rows have in common.
#[derive(Debug, Clone, Copy)]
pub struct Form<'a> {
    /// What is measured.
    pub job: &'a Job,
    /// By how many ranks.
    pub ranks: u32,
    /// Whether others are measured, too: then there is a column for each, and a ratio.
    pub against: bool,
}

impl Form<'_> {
    /// The lines above the table: those of nccl-tests, or one column for each variant of `row`.
    pub fn head(&self, row: &Row) -> String {
        if self.against {
            return self.head_against(row);
        }
        let more = if self.job.percentiles { "     p50     p99  stddev" } else { "" };
        let wide = 34 + more.len();
        let mut text = format!("#{:46} {:^wide$} {:^wide$}\n", "", "out-of-place", "in-place");
        let half = format!(" {:>8} {:>8} {:>7} {:>7}{more}", "time", "algbw", "busbw", "#wrong");
        let _ =
            writeln!(text, "# {:>11} {:>11} {:>8} {:>6} {:>5}{half}{half}", "size", "count", "type", "redop", "root");
        let spaces = " ".repeat(more.len());
        let units = format!(" {:>8} {:>8} {:>7} {:>7}{spaces}", "(us)", "(GB/s)", "(GB/s)", "");
        let _ = writeln!(text, "# {:>11} {:>11} {:>8} {:>6} {:>5}{units}{units}", "(B)", "(elements)", "", "", "");
        trimmed(&text)
    }

    /// A line of the table whose first line was `first`: that says which columns there are.
    pub fn row(&self, row: &Row, first: &Row) -> String {
        match self.against {
            true => self.row_against(row, first),
            // Several kinds of buffers make several lines.
            false => {
                let mut variants: Vec<&str> = row.measured.iter().map(|one| one.variant.as_str()).collect();
                variants.dedup();
                variants.iter().map(|variant| self.row_of(row, variant, variants.len() > 1)).collect()
            }
        }
    }

    fn row_of(&self, row: &Row, variant: &str, named: bool) -> String {
        let mut text = self.message(row);
        for place in [Place::Out, Place::In] {
            let found = row.measured.iter().find(|one| one.variant == variant && one.place == place);
            self.half(&mut text, row, found);
        }
        if named {
            let _ = write!(text, "  {variant}");
        }
        trimmed(&format!("{text}\n"))
    }

    fn message(&self, row: &Row) -> String {
        let job = self.job;
        let op = if job.collective.reduces() { job.op.to_string() } else { "none".into() };
        let root = if job.collective.has_root() { job.root.to_string() } else { "-1".into() };
        let name = if job.collective == Collective::Barrier { "-" } else { type_name(job.data_type) };
        format!("  {:>11} {:>11} {name:>8} {op:>6} {root:>5}", row.message.bytes, row.message.count)
    }

    fn half(&self, text: &mut String, row: &Row, found: Option<&Measured>) {
        let Some((one, us)) = found.and_then(|one| Some((one, one.us()?))) else {
            let _ = write!(text, " {:>8} {:>8} {:>7} {:>7}", "-", "-", "-", "-");
            if self.job.percentiles {
                let _ = write!(text, " {:>7} {:>7} {:>7}", "-", "-", "-");
            }
            return;
        };
        let algbw = one.algbw(row.message).unwrap_or(0.0);
        let busbw = algbw * self.job.collective.bus_factor(self.ranks as usize);
        let wrong = one.wrong.map_or_else(|| "N/A".into(), |wrong| wrong.to_string());
        let _ = write!(text, " {:>8} {:>8} {:>7} {wrong:>7}", time(us), bandwidth(algbw), bandwidth(busbw));
        if self.job.percentiles {
            let cells = one
                .calls
                .map_or(["-", "-", "-"].map(String::from), |calls| [calls.p50, calls.p99, calls.stddev].map(time));
            cells.iter().for_each(|cell| {
                let _ = write!(text, " {cell:>7}");
            });
        }
    }

    fn head_against(&self, row: &Row) -> String {
        let mut text = format!("# {:>11} {:>11} {:>8} {:>6} {:>5}", "size", "count", "type", "redop", "root");
        for one in &row.measured {
            let _ = write!(text, "  {:>1$}", title(one), width(one));
        }
        for own in row.measured.iter().filter(|one| one.own) {
            let _ = write!(text, "  {:>1$}", format!("ratio of {}", title(own)), ratio_width(own));
        }
        text.push_str("   #wrong\n");
        let _ = writeln!(
            text,
            "# {:>11} {:>11} {:>8} {:>6} {:>5}  times in us; ratio: the best rival's / ours",
            "(B)", "(elements)", "", "", ""
        );
        text
    }

    fn row_against(&self, row: &Row, first: &Row) -> String {
        let mut text = self.message(row);
        let here = |column: &Measured| {
            row.measured.iter().find(|one| one.variant == column.variant && one.place == column.place)
        };
        for column in &first.measured {
            // A rival may not take every size.
            let cell = here(column).map_or_else(
                || "-".into(),
                |one| one.us().map_or_else(|| one.failed.clone().unwrap_or_else(|| "-".into()), time),
            );
            let _ = write!(text, "  {cell:>0$}", width(column));
        }
        for own in first.measured.iter().filter(|one| one.own) {
            let ratio = here(own).and_then(|own| row.ratio(own));
            let cell = ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}x"));
            let _ = write!(text, "  {cell:>0$}", ratio_width(own));
        }
        let wrong = row.measured.iter().any(|one| one.wrong.is_some());
        let _ = writeln!(text, "  {:>7}", if wrong { row.wrong().to_string() } else { "N/A".into() });
        if self.job.percentiles {
            // Columns of their own would be three for each contestant.
            row.measured.iter().filter_map(|one| Some((one, one.calls?))).for_each(|(one, calls)| {
                let [p50, p99, stddev] = [calls.p50, calls.p99, calls.stddev].map(time);
                let (title, count) = (title(one), calls.count);
                let _ = writeln!(text, "# {count} single calls of {title}: p50 {p50}, p99 {p99}, stddev {stddev} us");
            });
        }
        text
    }

    /// One result as JSON.
    pub fn json(&self, row: &Row) -> Value {
        let job = self.job;
        let results: Vec<Value> = row
            .measured
            .iter()
            .map(|one| {
                let algbw = one.algbw(row.message);
                json!({
                    "variant": one.variant, "own": one.own, "place": one.place, "time_us": one.us(),
                    "algbw_gb_s": algbw, "busbw_gb_s": algbw.map(|rate| rate * job.collective.bus_factor(self.ranks as usize)),
                    "wrong": one.wrong, "batches_us": one.batches, "calls_us": one.calls, "failed": one.failed,
                    "ratio": if one.own { row.ratio(one) } else { None },
                })
            })
            .collect();
        json!({
            "collective": job.collective.name(), "ranks": self.ranks, "size": row.message.bytes, "count": row.message.count,
            "type": type_name(job.data_type), "redop": job.op.to_string(), "root": job.root, "results": results,
        })
    }
}

fn title(one: &Measured) -> String {
    match one.place {
        Place::Out => one.variant.clone(),
        Place::In => format!("{}, in place", one.variant),
    }
}

fn width(one: &Measured) -> usize {
    title(one).chars().count().max(9)
}

fn ratio_width(one: &Measured) -> usize {
    "ratio of ".len() + title(one).chars().count()
}

/// Microseconds with four digits that count.
fn time(us: f64) -> String {
    match us {
        us if us < 10.0 => format!("{us:.3}"),
        us if us < 100.0 => format!("{us:.2}"),
        us if us < 1000.0 => format!("{us:.1}"),
        us => format!("{us:.0}"),
    }
}

fn bandwidth(gb_s: f64) -> String {
    if gb_s < 1.0 { format!("{gb_s:.3}") } else { format!("{gb_s:.2}") }
}

fn trimmed(text: &str) -> String {
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::results::tests::entry;
    use super::super::sizes::Message;
    use super::*;
    use comm::{DataType, Op};
    use programs::bench::wire::{Calls, Entry};

    /// A job with all that is usual.
    pub fn job(collective: Collective) -> Job {
        Job {
            collective,
            data_type: DataType::F32,
            op: Op::Sum,
            root: 0,
            buffers: Vec::new(),
            places: Vec::new(),
            iterations: None,
            warmup: 0,
            batches: 1,
            batch_ms: 1.0,
            check: true,
            cold: false,
            percentiles: false,
            most_bytes: 0,
            device: None,
        }
    }

    #[test]
    fn columns_are_those_of_nccl_tests() {
        let job = job(Collective::AllReduce);
        let form = Form { job: &job, ranks: 4, against: false };
        let mut row = Row::new(Message { count: 262_144, bytes: 1 << 20 });
        row.add(true, entry("libcomm", Place::Out, &[100.0], Some(0)));
        row.add(true, entry("libcomm", Place::In, &[50.0], Some(3)));
        let head = "\
#                                                          out-of-place                         in-place
#        size       count     type  redop  root     time    algbw   busbw  #wrong     time    algbw   busbw  #wrong
#         (B)  (elements)                           (us)   (GB/s)  (GB/s)             (us)   (GB/s)  (GB/s)
";
        assert_eq!(form.head(&row), head);
        let line = "      1048576      262144    float    sum    -1    100.0    10.49   15.73       0    50.00    20.97   31.46       3\n";
        assert_eq!(form.row(&row, &row), line);
    }

    #[test]
    fn what_was_not_measured_is_a_dash() {
        let job = Job { percentiles: true, check: false, ..job(Collective::Broadcast) };
        let form = Form { job: &job, ranks: 2, against: false };
        let mut row = Row::new(Message { count: 1, bytes: 4 });
        row.add(true, entry("libcomm", Place::In, &[0.25], None));
        let line = form.row(&row, &row);
        assert!(line.contains(" none     0        -        -       -       -       -       -       -    0.250    0.016   0.016     N/A"), "{line}");
    }

    #[test]
    fn beside_rivals_single_calls_are_lines_of_their_own() {
        let job = Job { percentiles: true, ..job(Collective::AllReduce) };
        let form = Form { job: &job, ranks: 2, against: true };
        let calls = Calls::of(&[1.0, 2.0, 12.0]);
        let mut row = Row::new(Message { count: 1, bytes: 4 });
        row.add(true, Entry { calls, ..entry("libcomm", Place::Out, &[0.5], Some(0)) });
        row.add(false, entry("NCCL", Place::Out, &[0.75], Some(0)));
        let text = form.row(&row, &row);
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(lines, ["# 3 single calls of libcomm: p50 2.000, p99 12.00, stddev 4.967 us"]);
    }

    #[test]
    fn rivals_have_a_column_each_and_the_best_one_counts() {
        let job = job(Collective::AllReduce);
        let form = Form { job: &job, ranks: 2, against: true };
        let mut row = Row::new(Message { count: 1, bytes: 4 });
        row.add(true, entry("libcomm", Place::Out, &[0.5], Some(0)));
        row.add(false, entry("Open MPI", Place::Out, &[0.75], Some(0)));
        row.add_failure("MPICH", Place::Out, "> 60 s");
        let (head, line) = (form.head(&row), form.row(&row, &row));
        assert!(head.contains("root    libcomm   Open MPI      MPICH  ratio of libcomm   #wrong"), "{head}");
        assert!(line.ends_with("    0.500      0.750     > 60 s             1.50x        0\n"), "{line}");
        let mut later = Row::new(Message { count: 2, bytes: 8 });
        later.add(false, entry("MPICH", Place::Out, &[1.0], None));
        let line = form.row(&later, &row);
        assert!(line.ends_with("        -          -      1.000                 -      N/A\n"), "{line}");
        let json = form.json(&row);
        assert_eq!(
            (json["results"][0]["ratio"].as_f64(), json["results"][2]["failed"].as_str()),
            (Some(1.5), Some("> 60 s"))
        );
    }
}
