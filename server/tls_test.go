package server_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/server"
	"github.com/idemd/idemd/server/servertest"
)

// selfSigned is a certificate for 127.0.0.1, for either end, and a pool that trusts it.
func selfSigned(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{Organization: []string{"shop"}}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// With TLS a caller is told by its certificate; one that speaks plain text is not heard at all.
func TestTLSAndClientCertificates(t *testing.T) {
	t.Parallel()
	certificate, pool := selfSigned(t)
	byCertificate := func(ctx context.Context, _ string) (server.Principal, error) {
		p, ok := peer.FromContext(ctx)
		if !ok {
			return server.Principal{}, status.Error(codes.Unauthenticated, "no peer")
		}
		info, ok := p.AuthInfo.(credentials.TLSInfo)
		if !ok || len(info.State.VerifiedChains) == 0 {
			return server.Principal{}, status.Error(codes.Unauthenticated, "no certificate")
		}
		return server.Principal{
			Name: info.State.PeerCertificates[0].Subject.Organization[0], Tenant: "acme", Roles: server.Writer,
		}, nil
	}
	d := servertest.New(t, servertest.Options{TCP: true, Identify: byCertificate, Config: func(c *server.Config) {
		c.TLS = &tls.Config{
			MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate}, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: pool,
		}
	}})
	begin := func(creds credentials.TransportCredentials) (*idemv1.BeginResponse, error) {
		conn, err := grpc.NewClient(d.Addr(), grpc.WithTransportCredentials(creds))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		return idemv1.NewLedgerServiceClient(conn).Begin(context.Background(), beginRequest("k"))
	}
	_, err := begin(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool}))
	wantRefusal(t, err, server.ReasonUnauthenticated, codes.Unauthenticated)
	got, err := begin(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: pool, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &certificate, nil },
	}))
	if err != nil || got.GetGranted() == nil {
		t.Errorf("with a certificate: %v, %v", got, err)
	}
	if _, err := idemv1.NewLedgerServiceClient(d.Conn()).Begin(context.Background(), beginRequest("k")); status.Code(err) != codes.Unavailable {
		t.Errorf("in plain text: %v", err)
	}
}
