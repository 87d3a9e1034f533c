// Tests of the option schemas: every key has a description and a valid default, and secrets are
// marked.

import { type TSchema, Type } from "typebox";
import { Check } from "typebox/value";
import { adminOptions, apiOptions, authOptions, managersOptions } from "../../src/api/options.ts";
import { keysOf } from "../../src/config/keys.ts";
import { t } from "../support/suite.ts";

const SECTIONS = Type.Object({
  api: apiOptions,
  auth: authOptions,
  admin: adminOptions,
  managers: managersOptions,
});

t.test("every setting of the control plane has a description and a valid default", async (t) => {
  for (const { name, schema } of keysOf(SECTIONS)) {
    t.ok(Check(schema as TSchema, schema.default), name);
    t.match(schema.description, /^.{10,}\.$/, name);
  }
});

t.test("the API listens on loopback by default, and no secret is set", async (t) => {
  const listen = keysOf(SECTIONS).find(({ name }) => name === "api.listen");
  t.equal(listen?.schema.default, "127.0.0.1:5001");
  const secrets = keysOf(SECTIONS).filter((key) => key.secret);
  t.same(
    secrets.map(({ name }) => name),
    ["api.token", "api.tls.passphrase", "admin.password", "managers"],
  );
  for (const { schema } of secrets) t.same(schema.default, schema.type === "array" ? [] : "");
});

t.test("a manager account requires a username, a known role and known permissions", async (t) => {
  const account = {
    username: "a",
    passwordHash: "",
    password: "p",
    role: "viewer",
    permissions: [],
  };
  t.ok(Check(managersOptions, [account]));
  for (const invalid of [
    { username: "" },
    { role: "root" },
    { permissions: ["users:read"] },
    { extra: 1 },
  ])
    t.notOk(Check(managersOptions, [{ ...account, ...invalid }]), Object.keys(invalid)[0] ?? "");
});
