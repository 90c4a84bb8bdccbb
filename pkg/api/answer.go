// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

// answer is the envelope of the Primus Lens node exporter.
type answer struct {
	Code    int    `json:"code"`    // 0, or the HTTP status of an error
	Data    any    `json:"data"`    // null in an error
	Message string `json:"message"` // success, the error, or the missing part of the data
}

// statusError is an error with an HTTP status other than 503.
type statusError struct {
	error
	status int
}

var errMethod = statusError{errors.New("only GET and HEAD are answered"), http.StatusMethodNotAllowed}

// enveloped answers with the result of ask in the envelope. Data with an error is a partial answer: the message
// contains the error.
func enveloped(ask func(*Known, *http.Request) (data any, err error)) answerFunc {
	return func(w http.ResponseWriter, r *http.Request, known *Known) {
		data, err := ask(known, r)
		switch {
		case err == nil:
			write(w, http.StatusOK, answer{Data: data, Message: "success"})
		case data != nil:
			write(w, http.StatusOK, answer{Data: data, Message: "partial: " + err.Error()})
		default:
			refuse(w, err)
		}
	}
}

func refuse(w http.ResponseWriter, err error) {
	write(w, statusOf(err), answer{Code: statusOf(err), Message: err.Error()})
}

func statusOf(err error) int {
	if s, ok := errors.AsType[statusError](err); ok {
		return s.status
	}
	return http.StatusServiceUnavailable
}

// inPart returns n facts and the error of the sources that report them. With an error and no facts it returns only the
// error, because the number of facts is unknown.
func (k *Known) inPart(facts any, n int, missing error) (any, error) {
	if n == 0 && missing != nil {
		return nil, missing
	}
	return facts, missing
}

// missing returns why sources do not report all facts. An absent source is not a reason: it has nothing to report.
func (k *Known) missing(collected bool, sources ...string) error {
	var why []string
	registered, ok := false, false
	for _, s := range k.States {
		if !slices.Contains(sources, s.Source) {
			continue
		}
		registered = true
		switch s.State {
		case model.StateOK:
			ok = true
		case model.StateAbsent:
		default:
			why = append(why, fmt.Sprintf("%s is %s: %s", s.Source, s.State, s.Reason))
		}
	}
	switch {
	case !registered:
		return fmt.Errorf("not read: %s is switched off", strings.Join(sources, ", "))
	case why != nil:
		return errors.New(strings.Join(why, "; "))
	case ok && !collected:
		return fmt.Errorf("%s has not told it yet", strings.Join(sources, ", "))
	}
	return nil
}
