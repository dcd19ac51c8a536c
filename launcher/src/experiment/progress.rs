//! How far a sweep is: a bar with the time that is left on a terminal, plain lines elsewhere, all on stderr.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Plain lines come no more often.
const EVERY: Duration = Duration::from_secs(5);

/// Shows how far a sweep is.
#[derive(Debug)]
pub struct Progress {
    form: Form,
    began: Instant,
    /// Trials that were done before this run of the sweep.
    before: usize,
}

#[derive(Debug)]
enum Form {
    None,
    Bar(ProgressBar),
    Lines { last: Option<Instant> },
}

impl Progress {
    /// The form that fits.
    pub fn new(quiet: bool, before: usize) -> Progress {
        let is_terminal =
            std::io::stderr().is_terminal() && std::env::var_os("TERM").is_some_and(|term| term != "dumb");
        let form = match (quiet, is_terminal) {
            (true, _) => Form::None,
            (false, true) => Form::Bar(bar()),
            (false, false) => Form::Lines { last: None },
        };
        Progress { form, began: Instant::now(), before }
    }

    /// `done` of `total` are done; `running` is what is being tried.
    pub fn show(&mut self, done: usize, total: usize, running: &str) {
        let left = self.left(done, total);
        match &mut self.form {
            Form::None => {}
            Form::Bar(bar) => {
                bar.set_length(total as u64);
                bar.set_position(done as u64);
                bar.set_message(running.to_owned());
                bar.set_prefix(left.map_or_else(|| "–".into(), short));
            }
            Form::Lines { last } => {
                if done > 0 && (done == total || last.is_none_or(|last| last.elapsed() >= EVERY)) {
                    *last = Some(Instant::now());
                    let left = left
                        .filter(|_| done < total)
                        .map_or_else(String::new, |left| format!(", {} left", short(left)));
                    self.say(&format!("prun: {done} of {total} trials{left}"));
                }
            }
        }
    }

    /// A line that stays.
    pub fn say(&self, text: &str) {
        match &self.form {
            Form::Bar(bar) => bar.suspend(|| eprintln!("{text}")),
            _ => {
                let _ = writeln!(std::io::stderr(), "{text}");
            }
        }
    }

    /// Takes the bar away.
    pub fn end(&self) {
        if let Form::Bar(bar) = &self.form {
            bar.finish_and_clear();
        }
    }

    /// How long the rest will take if it goes on as it has since this run began.
    fn left(&self, done: usize, total: usize) -> Option<Duration> {
        let now = done.checked_sub(self.before).filter(|&now| now > 0)?;
        Some(self.began.elapsed().mul_f64(total.saturating_sub(done) as f64 / now as f64))
    }
}

fn bar() -> ProgressBar {
    let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let template = if colour {
        "{bar:30.cyan/dim} {pos}/{len} trials, {prefix:.bold} left  {wide_msg:.dim}"
    } else {
        "{bar:30} {pos}/{len} trials, {prefix} left  {wide_msg}"
    };
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr()).with_style(style.progress_chars("━╸─"))
}

/// `8 s`, `3 min 20 s`, `2 h 5 min`.
pub fn short(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds @ 60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        seconds => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}
