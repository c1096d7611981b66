//! SQLite on a real file system that is full: refused with the reason, and back without a restart.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use jiff::SignedDuration;
use serde_json::json;
use server::engine::{self, Pulse};

use crate::support::{Place, Service};

const TOKENS: &str = "/v1/enrollment-tokens";

/// A small tmpfs over a directory, until it is dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// `None` for anyone but root, who alone may mount.
    fn over(dir: &Path) -> Option<SmallDisk> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=8m", "tmpfs"]).arg(dir);
        let mounted = mount.output().is_ok_and(|output| output.status.success());
        mounted.then(|| SmallDisk(dir.to_owned()))
    }

    fn fill(&self) {
        // Writes until the kernel refuses.
        let mut file = std::fs::File::create(self.filler()).unwrap();
        while std::io::Write::write_all(&mut file, &[0; 4096]).is_ok() {}
    }

    fn free(&self) {
        std::fs::remove_file(self.filler()).unwrap();
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

async fn readiness(service: &Service) -> (u16, String) {
    let answer = service.get("/readyz").await;
    (answer.status.as_u16(), String::from_utf8_lossy(&answer.bytes).into_owned())
}

async fn until_ready(service: &Service, wanted: u16) -> String {
    let mut seen = String::new();
    for _ in 0..500 {
        let (status, text) = readiness(service).await;
        if status == wanted {
            return text;
        }
        seen = text;
        tokio::time::sleep(Duration::from_millis(10)).await;
        // SQLite does not write a row that stays the same, so the lease must end at another time.
        service.hands.turn(SignedDuration::from_millis(10));
    }
    panic!("/readyz never answered {wanted}: {seen}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_disk_is_reported_and_writes_work_again_once_there_is_space() {
    let place = Place::sqlite();
    let Some(disk) = SmallDisk::over(&place.dir) else {
        println!("skipped: only root may mount a small file system");
        return;
    };
    let service = Service::on(place).await;
    let pulse = Pulse { lead: Duration::from_millis(20), ..Pulse::default() };
    let engine = engine::spawn_with(service.app.clone(), pulse);
    until_ready(&service, 200).await;
    let mut acknowledged = 0;
    for _ in 0..3 {
        disk.fill();
        let refusal = loop {
            let answer = service.post(TOKENS, json!({"name": "x".repeat(100)})).await;
            if answer.status.as_u16() != 201 {
                break answer.is_problem(503, "unavailable");
            }
            acknowledged += 1;
        };
        let detail = refusal.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains("disk is full"), "{detail}");
        assert_eq!(refusal.header("retry-after"), "2");
        assert!(until_ready(&service, 503).await.contains("disk is full"));
        // Reads still work.
        service.get(TOKENS).await.is(200);
        disk.free();
        service.post(TOKENS, json!({"name": "after"})).await.is(201);
        acknowledged += 1;
        until_ready(&service, 200).await;
        assert!(engine.leads());
        let listed = service.get(TOKENS).await.is(200).json();
        assert_eq!(listed["meta"]["total"], acknowledged, "{listed}");
    }
    engine.stop().await;
    service.app.db.close().await;
    let dir = service.place.dir.clone();
    drop(disk);
    std::fs::remove_dir_all(dir).unwrap();
}
