// Runs the behaviour tests of WKProto with clients that connect over TCP: on one node with the
// embedded store, and with JINDOU_TEST_VOLUME=full also on three nodes on one Redis. The scenarios
// of formats.test.ts run over TCP in both cases anyway.

import t from "tap";
import { IS_FULL } from "../support/volume.ts";
import { runFilesOf } from "./suites.ts";

process.env.JINDOU_TEST_WKPROTO = "tcp"; // read when the test files are loaded

const names = ["wkproto", "wukongim-copies", "bans"] as const;
await runFilesOf(t, IS_FULL ? "three" : "embedded", names);
