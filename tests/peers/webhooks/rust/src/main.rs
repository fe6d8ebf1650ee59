// Verifies a notice: the secret, the id, the time and the signatures of its headers, and the file with its body.
use std::{env, fs, process};

fn main() {
    let arguments: Vec<String> = env::args().collect();
    let mut headers = http::HeaderMap::new();
    for (number, name) in ["webhook-id", "webhook-timestamp", "webhook-signature"].into_iter().enumerate() {
        headers.insert(name, arguments[number + 2].parse().unwrap());
    }
    let body = fs::read(&arguments[5]).unwrap();
    let webhook = standardwebhooks::Webhook::new(&arguments[1]).unwrap();
    if let Err(error) = webhook.verify(&body, &headers) {
        println!("refused: {error}");
        process::exit(3);
    }
}
