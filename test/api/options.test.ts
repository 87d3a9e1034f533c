// The option schemas: every key is documented and has a usable default; secrets are marked.

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

t.test("every key has a default that its own schema accepts, and a sentence", async (t) => {
  for (const { name, schema } of keysOf(SECTIONS)) {
    t.ok(Check(schema as TSchema, schema.default), name);
    t.match(schema.description, /^.{10,}\.$/, name);
  }
});

t.test("the API listens on loopback with no secret set unless told otherwise", async (t) => {
  const listen = keysOf(SECTIONS).find((one) => one.name === "api.listen");
  t.equal(listen?.schema.default, "127.0.0.1:5001");
  const secret = keysOf(SECTIONS).filter((one) => one.secret);
  t.same(
    secret.map((one) => one.name),
    ["api.token", "api.tls.passphrase", "admin.password", "managers"],
  );
  for (const { schema } of secret) t.same(schema.default, schema.type === "array" ? [] : "");
});

t.test("an account needs a username, a known role and known permissions", async (t) => {
  const account = {
    username: "a",
    passwordHash: "",
    password: "p",
    role: "viewer",
    permissions: [],
  };
  t.ok(Check(managersOptions, [account]));
  for (const wrong of [
    { username: "" },
    { role: "root" },
    { permissions: ["users:read"] },
    { extra: 1 },
  ])
    t.notOk(Check(managersOptions, [{ ...account, ...wrong }]), Object.keys(wrong)[0] ?? "");
});
