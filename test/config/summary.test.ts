// Tests of the start banner and of the masked configuration that `print-config` prints.

import { loadConfig } from "../../src/config/load.ts";
import { MASK, maskSecrets, startSummary } from "../../src/config/summary.ts";
import { t } from "../support/suite.ts";

const ports = { apiPort: 4001, clientPort: 4002 };

t.test(
  "the start banner shows the actual ports of the listeners and who may use them",
  async (t) => {
    const text = startSummary(loadConfig(), ports, "1.2.3");
    t.match(text, /http:\/\/127\.0\.0\.1:4001 .*no credential/);
    t.match(text, /ws:\/\/0\.0\.0\.0:4002 .*token/);
    t.match(text, "http://127.0.0.1:4001/metrics");
    t.match(text, "1.2.3");
  },
);

t.test(
  "the start banner shows TLS, IPv6 addresses and that a credential is required",
  async (t) => {
    const env = {
      JINDOU_API_LISTEN: "[::]:1",
      JINDOU_API_TOKEN: "hunter2-hunter2-hunter2",
      JINDOU_AUTH_CLIENTS: "none",
      JINDOU_CLIENT_ALLOWED_ORIGINS: "https://chat.example.com",
      JINDOU_CLIENT_TLS_CERT_FILE: "c",
      JINDOU_CLIENT_TLS_KEY_FILE: "k",
    };
    const text = startSummary(loadConfig({ env }), ports, "1");
    t.match(text, /http:\/\/\[::\]:4001 .*credential required/);
    t.match(text, "wss://");
    t.notMatch(text, /hunter2/);
  },
);

t.test("the start banner of a node on Redis does not show the address of Redis", async (t) => {
  const env = { JINDOU_REDIS_URL: "redis://:hunter2@10.0.0.1:7000" };
  const text = startSummary(loadConfig({ env }), ports, "1");
  t.match(text, /data +Redis, keys jd:/);
  t.notMatch(text, /hunter2|10\.0\.0\.1/);
});

t.test(
  "the displayed configuration masks every secret that is set and shows all other values",
  async (t) => {
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
    const masked = maskSecrets(config);
    t.notMatch(JSON.stringify(masked), /hunter2/);
    t.match(masked, {
      api: { token: MASK, listen: "127.0.0.1:5001" },
      admin: { password: "" },
      redis: { url: MASK, prefix: "jd" },
      managers: [
        { username: "ops", password: MASK, passwordHash: "" },
        { username: "dev", password: "", passwordHash: MASK },
      ],
      client: { tls: { passphrase: MASK } },
    });
    t.equal(config.api.token, "hunter2", "the configuration itself is not changed");
  },
);

t.test("a configuration without secrets is displayed unchanged", async (t) => {
  t.same(maskSecrets(loadConfig()), loadConfig());
});
