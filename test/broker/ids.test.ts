// Valid and invalid ids and labels [decisions: Limits].

import { assertId, assertLabel, assertUserUid } from "../../src/broker/ids.ts";
import { isId, SYSTEM_UID } from "../../src/broker/model.ts";
import { t } from "../support/suite.ts";

const CONTROLS = [
  ...Array.from({ length: 0x20 }, (_, code) => code),
  ...Array.from({ length: 0x21 }, (_, at) => 0x7f + at),
].map((code) => String.fromCharCode(code));

const LONE_SURROGATES = ["\ud800", "\udfff", "a\udc00b", "\ude00\ud83d"];

t.test("ids may contain spaces, punctuation and non-Latin characters", async (t) => {
  const valid = ["a", "user 1", "用户", "ümlaut", "👍", "a:b/c*d%", "-._~"];
  for (const id of [...valid, "2f1e-uuid-like", "\u00a0", "\ufeff"])
    t.ok(isId(id), JSON.stringify(id));
});

t.test("an id has 1 to 128 characters", async (t) => {
  t.notOk(isId(""));
  t.ok(isId("x".repeat(128)));
  t.notOk(isId("x".repeat(129)));
  t.ok(isId("用".repeat(128)));
});

t.test("an id must not contain @, # or &", async (t) => {
  for (const sign of ["@", "#", "&"])
    for (const id of [sign, `${sign}a`, `a${sign}`, `a${sign}b`]) t.notOk(isId(id), id);
});

t.test("an id must not contain control characters", async (t) => {
  t.equal(CONTROLS.length, 65);
  for (const control of CONTROLS) t.notOk(isId(`a${control}b`), JSON.stringify(control));
});

t.test("an id must be well-formed Unicode", async (t) => {
  for (const id of LONE_SURROGATES) t.notOk(isId(id), JSON.stringify(id));
});

t.test("an invalid id is rejected with bad_id and the name of the field", async (t) => {
  t.doesNotThrow(() => assertId("a", "uid"));
  t.throws(() => assertId("a@b", "channel_id"), {
    code: "bad_id",
    details: [{ path: "channel_id" }],
  });
});

t.test(
  "a label has 1 to 128 characters of well-formed Unicode, and may contain @, #, & and control characters",
  async (t) => {
    for (const label of ["a@b#c&d", "\n", "x".repeat(128)])
      t.doesNotThrow(() => assertLabel(label, "client_msg_no"));
    for (const label of ["", "x".repeat(129), ...LONE_SURROGATES])
      t.throws(() => assertLabel(label, "client_msg_no"), {
        code: "bad_request",
        details: [{ path: "client_msg_no" }],
      });
  },
);

t.test("the system uid is a valid id but is reserved", async (t) => {
  t.ok(isId(SYSTEM_UID));
  t.throws(() => assertUserUid(SYSTEM_UID), { code: "reserved_uid" });
  t.throws(() => assertUserUid(""), { code: "bad_id" });
  t.doesNotThrow(() => assertUserUid(`${SYSTEM_UID}2`));
});
