//! How long things take. `cargo nextest run --run-ignored only figures --no-capture`

use std::time::{Duration, Instant};

use atoll_jail::netns;
use atoll_model::{Policy, Verdict};

use super::world::{World, copy};
use crate::network::Network;

/// How many there are at once.
const LIVE: usize = 1000;

fn show(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e3;
    let text = format!("{what}: p50 {:.2} p99 {:.2} ms\n", at(0.5), at(0.99));
    rustix::io::write(rustix::stdio::stderr(), text.as_bytes()).expect("stderr");
}

#[test]
#[ignore = "figures, not facts"]
fn figures_of_links_and_policies() {
    World::with(async |world| {
        let network = Network::new("aaaa", world.config(), None).expect("a network");
        let begin = Instant::now();
        let namespace = netns::create().expect("namespace");
        let first = network
            .attach(namespace, Policy::default())
            .await
            .expect("attach");
        show("set-up and first attach", vec![begin.elapsed()]);
        for (name, policy) in [
            ("open", Policy::default()),
            (
                "with a policy",
                Policy::parse(&["1.1.1.1", "9.9.9.9:443"], &["8.8.8.8"], Verdict::Deny)
                    .expect("policy"),
            ),
        ] {
            // Namespaces of what was before die in their own time.
            tokio::time::sleep(Duration::from_secs(3)).await;
            let mut times = Vec::new();
            let mut held = Vec::new();
            for _ in 0..LIVE {
                let namespace = netns::create().expect("namespace");
                let begin = Instant::now();
                let link = network
                    .attach(copy(&namespace), policy.clone())
                    .await
                    .expect("attach");
                times.push(begin.elapsed());
                held.push((namespace, link));
            }
            let many = times.split_off(LIVE - 100);
            show(&format!("attach, {name}, the last 100 of {LIVE}"), many);
            times.truncate(100);
            show(&format!("attach, {name}, the first 100"), times);
            let mut times = Vec::new();
            for (_, link) in &held[..50] {
                let begin = Instant::now();
                let deny = Policy::parse(&["1.1.1.0/24"], &["8.8.8.8"], Verdict::Allow);
                link.set_policy(deny.expect("policy"))
                    .await
                    .expect("change");
                times.push(begin.elapsed());
            }
            show("change of policy", times);
            let begin = Instant::now();
            let times = held.into_iter().map(|held| {
                let begin = Instant::now();
                drop(held);
                begin.elapsed()
            });
            show("detach", times.collect());
            while super::links().lines().count() > 1 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            show(&format!("{LIVE} links gone after"), vec![begin.elapsed()]);
            tokio::time::sleep(Duration::from_secs(3)).await;
            let begin = Instant::now();
            let mut times = Vec::new();
            for _ in 0..300 {
                let namespace = netns::create().expect("namespace");
                let begin = Instant::now();
                drop(
                    network
                        .attach(namespace, policy.clone())
                        .await
                        .expect("attach"),
                );
                times.push(begin.elapsed());
            }
            show(&format!("attach and drop in turns, {name}"), times);
            show("per round, with namespaces", vec![begin.elapsed() / 300]);
        }
        drop(first);
        let begin = Instant::now();
        network.dismantle().await.expect("dismantle");
        show("dismantle", vec![begin.elapsed()]);
    });
}
