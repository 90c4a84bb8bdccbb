// SPDX-License-Identifier: Apache-2.0

package unload

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/boundedfile"
)

const (
	// watchTime is how long the API server sends events before it ends an answer.
	watchTime = 5 * time.Minute
	// answerTime bounds the time for a connection, and for the header of an answer.
	answerTime = 10 * time.Second
	// Bounds of the pause before the next request.
	shortestPause = time.Second
	longestPause  = time.Minute
	tryTime       = 3 * time.Second
	// eventPause is the pause between two events.
	eventPause = 100 * time.Millisecond
	// maxEvent bounds the size of an event. etcd stores objects of at most 1.5 MiB.
	maxEvent = 4 << 20
	// maxFile bounds the size of a token or CA file.
	maxFile = 1 << 20
)

// Node is the node whose labels are read from the API server of Kubernetes. The service account needs the verb watch on
// nodes. Only this node is requested.
type Node struct {
	Name      string
	Server    string // https://HOST:PORT
	TokenFile string
	CAFile    string

	pause time.Duration // 0: shortestPause
}

// watch calls set with the labels whenever the node has changed, until the context ends. While the API server does not
// answer, the last labels stay.
func (n *Node) watch(ctx context.Context, log *zap.Logger, set func(map[string]string)) {
	shortest := max(n.pause, 0)
	if shortest == 0 {
		shortest = shortestPause
	}
	pause, failed := shortest, ""
	for {
		begin := time.Now()
		answered := false
		err := n.request(ctx, func(labels map[string]string) {
			answered, failed = true, ""
			set(labels)
		})
		if ctx.Err() != nil {
			return
		}
		if err != nil && err.Error() != failed {
			failed = err.Error()
			log.Warn("cannot watch the labels of the node", zap.Error(err))
		}
		if answered && time.Since(begin) > longestPause {
			pause = shortest
		}
		select {
		case <-time.After(pause/2 + rand.N(pause/2+1)): // random, because all sensors lose the API server at the same moment
		case <-ctx.Done():
			return
		}
		pause = min(2*pause, longestPause)
	}
}

// Try watches the node until the API server has sent its labels once.
func (n *Node) Try(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, tryTime)
	defer cancel()
	answered := false
	err := n.request(ctx, func(map[string]string) {
		answered = true
		cancel()
	})
	switch {
	case answered:
		return nil
	case errors.Is(ctx.Err(), context.DeadlineExceeded): // err may be nil: the deadline ends the answer
		return fmt.Errorf("the API server sends nothing about the node %q in %v", n.Name, tryTime)
	case err == nil:
		return fmt.Errorf("the API server has no node %q", n.Name)
	}
	return err
}

// request makes one request and reads its events until the API server ends it.
func (n *Node) request(ctx context.Context, set func(map[string]string)) error {
	ctx, cancel := context.WithTimeout(ctx, watchTime+answerTime)
	defer cancel()
	client, err := n.client()
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	query := url.Values{
		"watch": {"true"}, "fieldSelector": {"metadata.name=" + n.Name}, "timeoutSeconds": {fmt.Sprint(watchTime.Seconds())},
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, n.Server+"/api/v1/nodes?"+query.Encode(), nil)
	if err != nil {
		return errors.New("the address of the API server is not a URL")
	}
	if request.URL.Scheme != "https" {
		return errors.New("the address of the API server is not https://HOST:PORT")
	}
	token, err := readSmall(n.TokenFile)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+string(bytes.TrimSpace(token)))
	// The first media type omits the status and the specification of the node.
	request.Header.Set("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json")
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		// The body is not shown: a server may repeat the token in it.
		return fmt.Errorf("watching the node: %d %s", response.StatusCode, http.StatusText(response.StatusCode))
	}
	return n.events(ctx, response.Body, set)
}

// event is an event of a watch. Its object is the node, or a status if the type is ERROR.
type event struct {
	Type   string `json:"type"`
	Object struct {
		Code     int `json:"code"` // of a status
		Metadata struct {
			Name   string            `json:"name"`
			Labels map[string]string `json:"labels"`
		} `json:"metadata"`
	} `json:"object"`
}

// events decodes events until the end of the answer. An answer without a resource version begins with the current node.
func (n *Node) events(ctx context.Context, body io.Reader, set func(map[string]string)) error {
	limited := &io.LimitedReader{R: body}
	decoder := json.NewDecoder(limited)
	for {
		labels, mine, err := n.next(decoder, limited)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if mine {
			set(labels)
		}
		select {
		case <-time.After(eventPause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// next decodes an event. mine is false if the event is not about the node. The error is io.EOF after the last event.
func (n *Node) next(decoder *json.Decoder, limited *io.LimitedReader) (labels map[string]string, mine bool, err error) {
	limited.N = maxEvent
	var e event
	err = decoder.Decode(&e)
	switch {
	case limited.N <= 0:
		return nil, false, fmt.Errorf("an event about the node is larger than %d bytes", maxEvent)
	case errors.Is(err, io.EOF):
		return nil, false, io.EOF
	case err != nil:
		return nil, false, fmt.Errorf("an event about the node: %w", err)
	case e.Type == "ERROR":
		return nil, false, fmt.Errorf("watching the node: status %d", e.Object.Code)
	case e.Object.Metadata.Name != n.Name:
		return nil, false, nil
	case e.Type == "DELETED":
		return nil, true, nil
	}
	return e.Object.Metadata.Labels, e.Type == "ADDED" || e.Type == "MODIFIED", nil
}

// client returns a client for the current CA file. It follows no redirect and uses no proxy, so that only the API
// server receives the token.
func (n *Node) client() (*http.Client, error) {
	ca, err := readSmall(n.CAFile)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("no certificate in %s", n.CAFile)
	}
	return &http.Client{
		Transport: &http.Transport{
			TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
			DialContext:            (&net.Dialer{Timeout: answerTime}).DialContext,
			TLSHandshakeTimeout:    answerTime,
			ResponseHeaderTimeout:  answerTime,
			MaxResponseHeaderBytes: 64 << 10,
			DisableCompression:     true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

func readSmall(path string) ([]byte, error) {
	b, err := boundedfile.ReadFile(path, nil, maxFile+1)
	if len(b) > maxFile {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, maxFile)
	}
	return b, err
}
