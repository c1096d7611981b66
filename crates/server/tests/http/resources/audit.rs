//! The audit log contains who changed what, for every operation.

use crate::resources::mutations::{READ_ONLY, audited_actions, mutations, new_admin};
use crate::support::{Service, TestRequest};

async fn every_mutating_operation_is_in_the_audit_log(service: &Service) {
    let cases = mutations(service).await;
    let (who, key) = new_admin(service).await;
    for case in cases {
        let before = audited_actions(service, &who).await.len();
        case.to_request(&key).send(&service.router).await.is(case.status);
        let after = audited_actions(service, &who).await;
        assert!(after.len() > before, "{} {} is not in the audit log", case.method, case.route);
        println!("{} {}: {:?}", case.method, case.route, &after[before..]);
    }
    let mut reader = service.app.db.read().await.unwrap();
    let seal = service::commands::setup::seal(&service.app.secrets);
    assert_eq!(store::audit::first_broken(&mut reader, service.org, &seal).await.unwrap(), None);
}

async fn operations_that_change_nothing_are_not_in_the_audit_log(service: &Service) {
    let (who, key) = new_admin(service).await;
    for (method, path) in READ_ONLY {
        let body = serde_json::json!({"targets": {"all": true}});
        TestRequest::new(method, path)
            .with_json(body)
            .with_key(&key)
            .send(&service.router)
            .await
            .is(200);
    }
    assert_eq!(audited_actions(service, &who).await, Vec::<String>::new());
}

testkit::both!(
    crate::support:
    every_mutating_operation_is_in_the_audit_log,
    operations_that_change_nothing_are_not_in_the_audit_log,
);
