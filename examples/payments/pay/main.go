// Command pay charges an account, and may be run again with the same key as often as one likes.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/examples/payments"
	paymentsv1 "github.com/idemd/idemd/examples/payments/gen/payments/v1"
)

func main() {
	address := flag.String("payments", "127.0.0.1:7450", "where the service is")
	key := flag.String("key", "", "which payment it is: the order's number, for example")
	account := flag.String("account", "", "whom to charge")
	amount := flag.Int64("cents", 0, "how much")
	flag.Parse()

	if err := run(*address, *key, &paymentsv1.ChargeRequest{Account: *account, AmountCents: *amount}); err != nil {
		log.Fatal(err)
	}
}

func run(address, key string, request *paymentsv1.ChargeRequest) error {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // the process ends
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var trailer metadata.MD
	charge, err := payments.Pay(ctx, paymentsv1.NewPaymentsServiceClient(conn), key, request, grpc.Trailer(&trailer))
	if err != nil {
		return err
	}
	fmt.Printf("%s: charge %s, %d cents in all\n", trailer.Get(clientlib.OutcomeTrailer), charge.GetChargeId(), charge.GetTotalCents())
	return nil
}
