// A configuration as people see it: the banner at start, and print-config.

import { loadConfig } from "../../src/config/load.ts";
import { MASK, maskSecrets, startSummary } from "../../src/config/summary.ts";
import { t } from "../support/suite.ts";

const ports = { apiPort: 4001, clientPort: 4002 };

t.test("the banner has the ports the listeners got and who may call", async (t) => {
  const text = startSummary(loadConfig(), ports, "1.2.3");
  t.match(text, /http:\/\/127\.0\.0\.1:4001 .*no credential/);
  t.match(text, /ws:\/\/0\.0\.0\.0:4002 .*token/);
  t.match(text, "http://127.0.0.1:4001/metrics");
  t.match(text, "1.2.3");
});

t.test("the banner tells TLS, IPv6 and protected mode", async (t) => {
  const env = {
    JINDOU_API_LISTEN: "[::]:1",
    JINDOU_API_TOKEN: "hunter2",
    JINDOU_AUTH_CLIENTS: "none",
    JINDOU_CLIENT_TLS_CERT_FILE: "c",
    JINDOU_CLIENT_TLS_KEY_FILE: "k",
  };
  const text = startSummary(loadConfig({ env }), ports, "1");
  t.match(text, /http:\/\/\[::\]:4001 .*credential required/);
  t.match(text, "wss://");
  t.notMatch(text, /hunter2/);
});

t.test("the banner of a node on Redis tells no address of it", async (t) => {
  const env = { JINDOU_REDIS_URL: "redis://:hunter2@10.0.0.1:7000" };
  const text = startSummary(loadConfig({ env }), ports, "1");
  t.match(text, /data +Redis, keys jd:/);
  t.notMatch(text, /hunter2|10\.0\.0\.1/);
});

t.test("set secrets are masked wherever they stand, all else is shown", async (t) => {
  const env = {
    JINDOU_API_TOKEN: "hunter2",
    JINDOU_CLIENT_TLS_CERT_FILE: "c",
    JINDOU_CLIENT_TLS_KEY_FILE: "k",
    JINDOU_CLIENT_TLS_PASSPHRASE: "hunter2",
    JINDOU_MANAGERS:
      '[{"username":"ops","password":"hunter2"},{"username":"dev","passwordHash":"hunter2"}]',
    JINDOU_REDIS_URL: "redis://:hunter2@localhost",
  };
  const config = loadConfig({ env });
  const shown = maskSecrets(config);
  t.notMatch(JSON.stringify(shown), /hunter2/);
  t.match(shown, {
    api: { token: MASK, listen: "127.0.0.1:5001" },
    admin: { password: "" },
    redis: { url: MASK, prefix: "jd" },
    managers: [
      { username: "ops", password: MASK, passwordHash: "" },
      { username: "dev", password: "", passwordHash: MASK },
    ],
    client: { tls: { passphrase: MASK } },
  });
  t.equal(config.api.token, "hunter2", "the configuration itself is whole");
});

t.test("without secrets the shown configuration is the real one", async (t) => {
  t.same(maskSecrets(loadConfig()), loadConfig());
});
