// Command paymentsd serves the example's payments. It keeps its account book in memory.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"

	"google.golang.org/grpc/credentials/insecure"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/examples/payments"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:7450", "where to listen")
	idemd := flag.String("idemd", "127.0.0.1:7433", "where the ledger is")
	flag.Parse()

	ledger, err := clientlib.New(clientlib.Config{Target: *idemd, TransportCredentials: insecure.NewCredentials()})
	if err != nil {
		log.Fatal(err)
	}
	server, err := payments.NewServer(ledger, payments.NewBook())
	if err != nil {
		log.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("payments at", listener.Addr())
	if err := server.Serve(listener); err != nil {
		log.Fatal(err)
	}
}
