// Verifies a notice: the secret, the id, the time and the signatures of its headers, and the file with its body.
package main

import (
	"fmt"
	"net/http"
	"os"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

func main() {
	headers := http.Header{}
	for number, name := range []string{"webhook-id", "webhook-timestamp", "webhook-signature"} {
		headers.Set(name, os.Args[number+2])
	}
	body, err := os.ReadFile(os.Args[5])
	if err != nil {
		panic(err)
	}
	webhook, err := standardwebhooks.NewWebhook(os.Args[1])
	if err != nil {
		panic(err)
	}
	if err := webhook.Verify(body, headers); err != nil {
		fmt.Println("refused:", err)
		os.Exit(3)
	}
}
