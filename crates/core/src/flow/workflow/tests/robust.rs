use proptest::prelude::*;

use super::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_answered(text in "\\PC{0,200}") {
        let _ = read(&text);
    }

    #[test]
    fn any_text_of_yaml_is_answered(text in "(steps|needs|retry|a|b|if|[:\\-\\[\\]{}&*!|>'\"%#,?~\n\t ]|<<|\\{\\{|\\}\\}|\\{%|%\\}){0,60}") {
        let _ = read(&text);
    }

    /// A document with a few letters changed, dropped, doubled or moved.
    #[test]
    fn a_damaged_document_is_answered(playbook: bool, damage in prop::collection::vec((0..4_u8, any::<prop::sample::Index>(), any::<char>()), 1..6)) {
        let whole = if playbook { playbooks::WHOLE } else { documents::WHOLE };
        let mut letters: Vec<char> = whole.chars().collect();
        for (how, place, letter) in damage {
            let at = place.index(letters.len());
            match how {
                0 => letters[at] = letter,
                1 => drop(letters.remove(at)),
                2 => letters.insert(at, letters[at]),
                _ => letters.swap(at, 0),
            }
        }
        let text: String = letters.into_iter().collect();
        if let Err(problems) = read(&text) {
            prop_assert!(!problems.0.is_empty());
            for problem in &problems.0 {
                let lines = text.lines().count() as u32 + 1;
                prop_assert!(problem.line.is_none_or(|line| (1..=lines).contains(&line)), "{problem}");
            }
        }
    }
}

#[test]
fn the_largest_workflow_is_read() {
    let mut text = String::from("steps:\n  s0: {}\n");
    for n in 1..MAX_STEPS {
        text.push_str(&format!("  s{n}: {{needs: s{}, if: 'steps.s0.result'}}\n", n - 1));
    }
    let workflow = good(&text);
    assert_eq!(workflow.steps.len(), MAX_STEPS);
    text.push_str("  more: {}\n");
    assert!(bad(&text).contains("has 10001 steps"));
}

#[test]
fn the_largest_playbook_is_read() {
    let mut text = String::from("kind: Playbook\nworkflow:\n");
    for n in 0..MAX_STEPS - 1 {
        text.push_str(&format!(
            "- {{step: s{n}, type: x, code: '{{{{ s0 }}}}', next: {{step: s{}, when: s{n}.x}}}}\n",
            n + 1
        ));
    }
    text = text.replacen("code: '{{ s0 }}', ", "", 1);
    text.push_str(&format!("- {{step: s{}, type: x}}\n", MAX_STEPS - 1));
    assert_eq!(good(&text).steps.len(), MAX_STEPS);
}

/// Ways that part and meet again and again double each time.
#[test]
fn ways_without_number_are_refused() {
    let mut text = String::from("kind: Playbook\nworkflow:\n- {step: start, next: m0}\n");
    for n in 0..40 {
        let (left, right) = (format!("l{n}"), format!("r{n}"));
        text.push_str(&format!(
            "- {{step: m{n}, next: [{{step: {left}, when: workload.x}}, {{step: {right}, when: workload.y}}]}}\n"
        ));
        text.push_str(&format!("- {{step: {left}, next: m{0}}}\n- {{step: {right}, next: m{0}}}\n", n + 1));
    }
    text.push_str("- {step: m40, type: x}\n");
    assert!(bad(&text).contains("too many ways with too many conditions"));
    let branches: String = (0..100).map(|n| format!("- {{step: b{n}, type: x, next: meet}}\n")).collect();
    let next: String = (0..100).map(|n| format!("{{step: b{n}, when: workload.x}}, ")).collect();
    let meeting =
        format!("kind: Playbook\nworkflow:\n- {{step: start, next: [{next}]}}\n{branches}- {{step: meet, type: x}}\n");
    assert!(bad(&meeting).contains("workflow[101].step: what leads here asks too much"));
}

#[test]
fn the_largest_circle_is_told_shortly() {
    let mut text = String::from("steps:\n");
    for n in 0..MAX_STEPS {
        text.push_str(&format!("  s{n}: {{needs: s{}}}\n", (n + 1) % MAX_STEPS));
    }
    let problems = bad(&text);
    assert!(problems.contains("circle: s0 → s1 → "), "{problems}");
    assert!(problems.len() < 300, "{problems}");
}

#[test]
fn laughing_is_refused() {
    let mut text = String::from("input:\n  a0: &a0 [ha]\n");
    for n in 1..30 {
        let many = vec![format!("*a{}", n - 1); 9].join(", ");
        text.push_str(&format!("  a{n}: &a{n} [{many}]\n"));
    }
    text.push_str("steps: {a: }\n");
    let problems = bad(&text);
    assert!(problems.contains("input.a5[6]: the aliases stand for more than 100000 values"), "{problems}");
}
