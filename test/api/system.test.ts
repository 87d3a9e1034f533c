// The calls about the process: /migrate/result, /healthz, /readyz, /metrics.

import { t } from "../support/suite.ts";
import { inject, startApi } from "./harness.ts";

t.test(
  "GET /migrate/result: nothing to migrate is migrated, no step, no error, no try [spec: GET /migrate/result]",
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

t.test("GET /healthz: 200 while the process lives, ready or not", async (t) => {
  const api = await startApi({ requiresCredential: true });
  api.ready = false;
  t.equal((await inject(api, "GET /healthz")).status, 200);
});

t.test(
  "GET /readyz: 200 when ready, 503 with the reason when not, without a credential",
  async (t) => {
    const api = await startApi({ requiresCredential: true });
    t.equal((await inject(api, "GET /readyz")).status, 200);
    api.ready = false;
    const { status, json } = await inject(api, "GET /readyz");
    t.equal(status, 503);
    t.match(json, { code: "unavailable", error: "The node is draining" });
    t.same(api.logged, [], "being asked while not ready is nothing to log");
  },
);

t.test("GET /metrics: Prometheus' text with its content type", async (t) => {
  const api = await startApi();
  const { status, text, headers } = await inject(api, "GET /metrics");
  t.equal(status, 200);
  t.equal(text, "jindou_up 1\n");
  t.match(headers["content-type"], /^text\/plain; version=0\.0\.4/);
});
