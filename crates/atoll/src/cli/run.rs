//! `atoll run`.

use crate::config::Config;
use atoll_model::{ExecSpec, SandboxSpec};
use atoll_worker::{Config as RuntimeConfig, LocalRuntime};
use clap::Args;
use std::process::ExitCode;

/// Run.
#[derive(Debug, Args)]
pub(crate) struct Run {
    #[arg(trailing_var_arg = true)]
    command: Vec<String>,
}

impl Run {
    #[allow(clippy::print_stderr)]
    pub(crate) fn run(self, config: &Config) -> ExitCode {
        let rt = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        rt.block_on(async move {
            let t0 = std::time::Instant::now();
            let runtime = LocalRuntime::open(RuntimeConfig::new(&config.data)).await?;
            eprintln!("open {:?}", t0.elapsed());
            let t0 = std::time::Instant::now();
            let info = runtime.create(SandboxSpec::default()).await?;
            eprintln!("create {:?} {:?}", t0.elapsed(), info.timings);
            let t0 = std::time::Instant::now();
            let exec = runtime
                .exec(&info.id, ExecSpec::argv(&self.command))
                .await?;
            let done = exec.finish(b"", 1 << 20).await?;
            eprintln!("exec {:?} {:?}", t0.elapsed(), done.status);
            eprintln!(
                "{}{}",
                String::from_utf8_lossy(&done.stdout),
                String::from_utf8_lossy(&done.stderr)
            );
            let t0 = std::time::Instant::now();
            runtime.delete(&info.id).await?;
            eprintln!("delete {:?}", t0.elapsed());
            let t0 = std::time::Instant::now();
            runtime.close().await?;
            eprintln!("close {:?}", t0.elapsed());
            Ok::<_, atoll_model::Error>(())
        })
        .map_err(|e| super::complain(&e))
        .ok();
        ExitCode::SUCCESS
    }
}
