//! `prun man`: the manual page, as roff.

use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::exit;
use crate::surface::{help, signals};

/// Variables that each rank finds.
const VARIABLES: [(&str, &str); 18] = [
    ("PRUN_RANK, RANK", "the number of the rank, from 0"),
    ("PRUN_SIZE, WORLD_SIZE", "how many ranks the job has"),
    ("PRUN_LOCAL_RANK, LOCAL_RANK", "the number of the rank on its node"),
    ("PRUN_LOCAL_SIZE, LOCAL_WORLD_SIZE", "how many ranks its node has"),
    ("PRUN_NODE", "the number of the node, from 0"),
    ("PRUN_JOB_ID", "the same for all ranks of a job, and new for each start"),
    ("PRUN_RESTART_COUNT", "how often --max-restarts started this job again"),
    ("MASTER_ADDR, MASTER_PORT", "this machine and a free port, for torch's env:// and its like"),
    (
        "CUDA_VISIBLE_DEVICES",
        "the GPUs of the job by UUID, the same for all ranks, so that the number of a rank's GPU is its local rank",
    ),
    ("PRUN_GPU", "the number of the rank's GPU among those"),
    ("PRUN_RING", "local ranks in the order in which data should go round the GPUs"),
    ("PRUN_LINK_HEALTH", "health of the worst link between the GPUs, 0 to 100, where it is known"),
    ("PRUN_RANKS_PER_GPU", "with --share-gpus: how many ranks have the same GPU at most"),
    ("OMP_NUM_THREADS", "the number of cores that the rank is bound to, if it is bound and nobody set another"),
    ("PRUN_VERIFY", "what --verify says"),
    ("PRUN_SEGMENT_FD, PRUN_SOCKET", "how libcomm finds the shared memory of the job"),
    (
        "",
        "RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT keep the value that -x or --env-file gives them.",
    ),
    ("", "Variables by which an outer mpirun, srun, torchrun or prun told its rank who it is are removed."),
];

/// The manual page.
pub fn page() -> String {
    let mut text: Vec<u8> = Vec::new();
    let command = help::whole();
    let man = Man::new(command.clone().after_help("")).title("PRUN").section("1").manual("User Commands");
    // Writing to memory does not fail.
    let _ = man.render_title(&mut text);
    let _ = man.render_name_section(&mut text);
    let _ = man.render_synopsis_section(&mut text);
    let _ = man.render_description_section(&mut text);
    let _ = man.render_options_section(&mut text);
    let _ = rest(&command).to_writer(&mut text);
    String::from_utf8_lossy(&text).into_owned()
}

fn rest(command: &clap::Command) -> Roff {
    let mut page = Roff::new();
    page.control("SH", ["OTHER COMMANDS"]);
    page.text([roman(
        "Only the very first argument can be one of these words: `prun -n 2 run` starts a program of that name.",
    )]);
    for word in command.get_subcommands() {
        page.control("TP", []);
        page.text([bold(format!("prun {}", word.get_name()))]);
        page.text([roman(word.get_about().map(ToString::to_string).unwrap_or_default())]);
    }
    page.control("SH", ["JOB FILE"]);
    page.text([roman(
        "A job file is TOML. A key is the long name of its flag, at the top or in one of the tables [output], [ending] and [placement], and \
         takes what the flag takes: texts, numbers, true and false. Relative paths count from prun's working directory. \
         `program` is a list, the program and then each argument; a table [[program]] for each of several programs holds argv, \
         ranks, wdir, env and pass-env. The table [env] sets variables; pass-env lists names whose values come from prun's own \
         environment.",
    )]);
    verbatim(&mut page, help::keys().trim_end());
    page.control("SH", ["VARIABLES OF THE RANKS"]);
    page.text([roman("Each rank finds:")]);
    for (names, meaning) in VARIABLES {
        if names.is_empty() {
            page.control("PP", []);
        } else {
            page.control("TP", []);
            page.text([bold(names)]);
        }
        page.text([roman(meaning)]);
    }
    page.control("SH", ["SIGNALS"]);
    verbatim(&mut page, signals::text().trim_end());
    page.control("SH", ["EXIT STATUS"]);
    verbatim(&mut page, exit::TEXT);
    page.control("SH", ["EXAMPLES"]);
    for (command, meaning) in help::examples() {
        page.control("TP", []);
        page.text([bold(command)]);
        page.text([roman(meaning)]);
    }
    page
}

fn verbatim(page: &mut Roff, text: &str) {
    page.control("nf", []);
    for line in text.lines() {
        page.text([roman(line)]);
    }
    page.control("fi", []);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::file::KEYS;

    #[test]
    fn the_page_mentions_every_option_and_key() {
        let page = page().replace("\\-", "-");
        for (flag, key) in KEYS {
            assert!(page.contains(&format!("--{flag}")) && page.contains(key), "{flag} {key}");
        }
        for word in ["completions", "signals", "PRUN_RANK", "124", "MASTER_ADDR"] {
            assert!(page.contains(word), "{word}");
        }
    }
}
