// Tests of the process endpoints: /migrate/result, /healthz, /readyz and /metrics.

import { t } from "../support/suite.ts";
import { inject, startApi } from "./harness.ts";

t.test(
  "GET /migrate/result returns the status `migrated`, without a step or an error, if there is nothing to migrate",
  async (t) => {
    const api = await startApi();
    const { status, json } = await inject(api, "GET /migrate/result");
    t.equal(status, 200);
    t.same(json, {
      status: "migrated",
      step: "",
      last_err: null,
      try_count: 0,
    });
  },
);

t.test(
  "GET /healthz returns 200 without a credential, even if the node is not ready",
  async (t) => {
    const api = await startApi({ requiresCredential: true });
    api.ready = false;
    t.equal((await inject(api, "GET /healthz")).status, 200);
  },
);

t.test(
  "GET /readyz needs no credential and returns 200 if the node is ready, or else 503 with the reason",
  async (t) => {
    const api = await startApi({ requiresCredential: true });
    t.equal((await inject(api, "GET /readyz")).status, 200);
    api.ready = false;
    const { status, json } = await inject(api, "GET /readyz");
    t.equal(status, 503);
    t.match(json, { code: "unavailable", error: "The node is draining" });
    t.same(api.logged, [], "a check of a node that is not ready is not logged");
  },
);

t.test("GET /metrics returns the Prometheus text format with its content type", async (t) => {
  const api = await startApi();
  const { status, text, headers } = await inject(api, "GET /metrics");
  t.equal(status, 200);
  t.equal(text, "jindou_up 1\n");
  t.match(headers["content-type"], /^text\/plain; version=0\.0\.4/);
});
