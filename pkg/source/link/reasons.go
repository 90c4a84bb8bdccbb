// SPDX-License-Identifier: Apache-2.0

package link

// downReason is an extended state of a link with its substates, which count from 1.
type downReason struct {
	name    string
	details []string
}

// downReasons are the extended states by their numbers (enum ethtool_link_ext_state and ethtool_link_ext_substate_* in
// include/uapi/linux/ethtool.h).
var downReasons = []downReason{
	{"autoneg", []string{
		"no_partner_detected", "ack_not_received", "next_page_exchange_failed", "no_partner_detected_force_mode",
		"fec_mismatch_during_override", "no_hcd",
	}},
	{"link_training_failure", []string{
		"kr_frame_lock_not_acquired", "kr_link_inhibit_timeout", "kr_link_partner_did_not_set_receiver_ready", "remote_fault",
	}},
	{"link_logical_mismatch", []string{
		"pcs_did_not_acquire_block_lock", "pcs_did_not_acquire_am_lock", "pcs_did_not_get_align_status", "fc_fec_is_not_locked",
		"rs_fec_is_not_locked",
	}},
	{"bad_signal_integrity", []string{
		"large_number_of_physical_errors", "unsupported_rate", "serdes_reference_clock_lost", "serdes_alos",
	}},
	{"no_cable", nil},
	{"cable_issue", []string{"unsupported_cable", "cable_test_failure"}},
	{"eeprom_issue", nil},
	{"calibration_failure", nil},
	{"power_budget_exceeded", nil},
	{"overheat", nil},
	{"module", []string{"cmis_not_ready"}},
	{"otp_speed_violation", nil},
	{"bmc_request_down", nil},
}

// linkReason returns the names of an extended state and substate. -1 stands for an unreported number, and has no name.
// A number of a later kernel is "other".
func linkReason(state, substate int) (reason, detail string) {
	if state < 0 {
		return "", ""
	}
	if state >= len(downReasons) {
		return "other", ""
	}
	r := &downReasons[state]
	switch {
	case substate < 1:
		return r.name, ""
	case substate > len(r.details):
		return r.name, "other"
	}
	return r.name, r.details[substate-1]
}
