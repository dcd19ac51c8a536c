//! Every trial as comma-separated values.

use crate::experiment::journal::{Results, State};
use crate::experiment::summary::{figure_names, marks_of};

/// A line of names, then a line for each trial in the order of their ends.
pub fn text(results: &Results) -> String {
    let parameters: Vec<&String> = results
        .header
        .variants
        .first()
        .map(|variant| variant.0.iter().map(|(name, _)| name).collect())
        .unwrap_or_default();
    let figures = figure_names(results);
    let mut heads: Vec<String> = parameters.iter().map(|name| name.to_string()).collect();
    heads.extend(["warmup", "repetition", "state", "code", "started", "total_s"].map(String::from));
    heads.extend(figures.iter().cloned());
    heads.extend(["max_rss_kib", "cpu_s", "marks", "directory"].map(String::from));
    let mut text = line(&heads);
    for (trial, marks) in results.trials.iter().zip(marks_of(results)) {
        let mut cells: Vec<String> =
            parameters.iter().map(|name| trial.parameters.get(name).unwrap_or_default().to_owned()).collect();
        cells.push(u8::from(trial.key.warmup).to_string());
        cells.push(trial.key.repetition.to_string());
        cells.push(state(trial.state).into());
        cells.push(trial.code.to_string());
        cells.push(format!("{:.3}", trial.started));
        cells.push(trial.total_s.to_string());
        let take = |name: &str| results.header.note(name).take;
        cells.extend(
            figures
                .iter()
                .map(|name| trial.figure(name, take(name)).map(|value| value.to_string()).unwrap_or_default()),
        );
        cells.push(trial.max_rss_kib().map(|kib| kib.to_string()).unwrap_or_default());
        cells.push(trial.cpu_s().to_string());
        cells.push(marks.iter().map(|mark| mark.what.as_str()).collect::<Vec<_>>().join("; "));
        cells.push(trial.directory.display().to_string());
        text.push_str(&line(&cells));
    }
    text
}

/// As JSON has it.
pub(crate) fn state(state: State) -> &'static str {
    match state {
        State::Done => "done",
        State::Failed => "failed",
        State::TimedOut => "timed_out",
        State::Infrastructure => "infrastructure",
    }
}

fn line(cells: &[String]) -> String {
    let quoted: Vec<String> = cells.iter().map(|cell| quoted(cell)).collect();
    format!("{}\n", quoted.join(","))
}

fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\n', '\r']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::summary::tests::results;

    #[test]
    fn every_trial_is_a_line() {
        let text = text(&results(&["n=2 a=x,y", "n=2 a=z"], &[0.5, 1.0]));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 25);
        assert_eq!(
            lines[0],
            "n,a,warmup,repetition,state,code,started,total_s,wall_s,max_rss_kib,cpu_s,marks,directory"
        );
        assert_eq!(lines[1], "2,\"x,y\",0,0,done,0,1700000000.000,0.503,0.5,2048,0.75,,trials/0/0");
        assert_eq!(quoted("a\"b\n"), "\"a\"\"b\n\"");
    }
}
