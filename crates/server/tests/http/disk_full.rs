//! A database on a full file system: requests are rejected with the reason, and work again without
//! a restart.
//!
//! Only PostgreSQL's tables are on the full file system, in a tablespace, and not its log: without
//! space for the log, PostgreSQL stops.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use jiff::SignedDuration;
use serde_json::json;
use server::background::{self, Intervals};
use sqlx::{AssertSqlSafe, Executor as _};

use testkit::{TestDatabase, superuser};

use crate::support::Service;

const TOKENS: &str = "/v1/enrollment-tokens";

/// A small tmpfs mounted on a directory, until dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// `options` such as `size=8m`. `None` without root, because only root may mount.
    fn mount(dir: &Path, options: &str) -> Option<SmallDisk> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(dir);
        if mount.output().is_ok_and(|output| output.status.success()) {
            return Some(SmallDisk(dir.to_owned()));
        }
        println!("skipped: mounting a small file system requires root");
        None
    }

    fn fill(&self) {
        // Writes until the kernel reports an error.
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
    let response = service.get("/readyz").await;
    (response.status.as_u16(), String::from_utf8_lossy(&response.bytes).into_owned())
}

async fn until_ready(service: &Service, wanted: u16) -> String {
    let mut seen = String::new();
    for _ in 0..2_000 {
        let (status, text) = readiness(service).await;
        if status == wanted {
            return text;
        }
        seen = text;
        tokio::time::sleep(Duration::from_millis(10)).await;
        // SQLite does not write an unchanged row, so the lease must end at another time.
        service.clock.advance(SignedDuration::from_millis(10));
    }
    panic!("/readyz never returned {wanted}: {seen}");
}

/// Fills the disk of a service and frees it again, three times.
async fn assert_full_disk_recovers(service: &Service, disk: &SmallDisk) {
    let intervals = Intervals { lease: Duration::from_millis(20), ..Intervals::default() };
    let engine = background::spawn_with(&service.app, intervals);
    until_ready(service, 200).await;
    let mut acknowledged = 0;
    for _ in 0..3 {
        disk.fill();
        let refusal = loop {
            let response = service.post(TOKENS, json!({"name": "x".repeat(100)})).await;
            if response.status.as_u16() != 201 {
                break response.is_problem(503, "unavailable");
            }
            acknowledged += 1;
        };
        let detail = refusal.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains("disk is full"), "{detail}");
        assert_eq!(refusal.header("retry-after"), "2");
        assert!(until_ready(service, 503).await.contains("disk is full"));
        // Reads still work.
        service.get(TOKENS).await.is(200);
        // It stays full until space is freed, though small writes may succeed.
        for _ in 0..20 {
            let (status, text) = readiness(service).await;
            assert_eq!(status, 503, "{text}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        disk.free();
        service.post(TOKENS, json!({"name": "after"})).await.is(201);
        acknowledged += 1;
        until_ready(service, 200).await;
        assert!(engine.is_leader());
        let listed = service.get(TOKENS).await.is(200).json();
        assert_eq!(listed["meta"]["total"], acknowledged, "{listed}");
    }
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_disk_is_reported_and_writes_recover() {
    let database = TestDatabase::sqlite();
    let Some(disk) = SmallDisk::mount(&database.dir, "size=8m") else { return };
    let service = Service::on(database).await;
    assert_full_disk_recovers(&service, &disk).await;
    service.app.db.close().await;
    let dir = service.database.dir.clone();
    drop(disk);
    std::fs::remove_dir_all(dir).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_disk_of_postgres_is_reported_and_writes_recover() {
    let _alone = crate::support::CLUSTER.write().await;
    let Some(mut admin) = superuser().await else { return };
    let (data,): (String,) =
        sqlx::query_as("show data_directory").fetch_one(&mut admin).await.unwrap();
    let Ok(owner) = std::fs::metadata(data) else {
        println!("skipped: PostgreSQL is on another machine");
        return;
    };
    let name = format!("fleetmend_small_{}", std::process::id());
    let dir = std::env::temp_dir().join(&name);
    std::fs::create_dir_all(&dir).unwrap();
    let options = format!("size=64m,mode=700,uid={},gid={}", owner.uid(), owner.gid());
    let Some(disk) = SmallDisk::mount(&dir, &options) else { return };
    let make = format!("create tablespace {name} location '{}'", dir.display());
    admin.execute(AssertSqlSafe(make)).await.unwrap();
    let database = TestDatabase::postgres_with(&format!("tablespace {name}")).await.unwrap();
    let service = Service::on(database).await;
    assert_full_disk_recovers(&service, &disk).await;
    service.remove().await;
    admin.execute(AssertSqlSafe(format!("drop tablespace {name}"))).await.unwrap();
    drop(disk);
    std::fs::remove_dir(dir).unwrap();
}
