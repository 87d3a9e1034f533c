// What print-config may show.

import t from "tap";
import { loadConfig } from "../../src/config/load.ts";
import { MASK, maskSecrets } from "../../src/config/mask.ts";

t.test(
  "set secrets are masked wherever they stand, all else is shown",
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
  },
);

t.test("without secrets the shown configuration is the real one", async (t) => {
  t.same(maskSecrets(loadConfig()), loadConfig());
});
