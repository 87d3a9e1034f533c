// Moved devices, passwords and access tokens as facts about keys in Redis (layout: `parts.ts`). Pure.

import type { Moved } from "../../moved.ts";
import {
  accessTokenKey,
  encodePassword,
  encodeToken,
  passwordsKey,
} from "../steps/managers.ts";
import { encodeDevice } from "../steps/users.ts";
import { type Fact, type ImportContext, SPACE_MS } from "./facts.ts";

type Of<Kind extends Moved["kind"]> = Extract<Moved, { readonly kind: Kind }>;

export function deviceFact(
  { keys }: ImportContext,
  { device }: Of<"device">,
): Fact {
  const items = [device.flag, encodeDevice(device)];
  return { kind: "hash", key: keys.user("dev", device.uid), items };
}

export function passwordFact(
  { keys }: ImportContext,
  { username, passwordHash }: Of<"password">,
): Fact {
  const items = [username, encodePassword(passwordHash)];
  return { kind: "hash", key: passwordsKey(keys), items };
}

export function tokenFacts(
  { keys, nowMs }: ImportContext,
  { hash, owner, expiresAtMs }: Of<"token">,
): readonly Fact[] {
  if (expiresAtMs <= nowMs) return [];
  const key = accessTokenKey(keys, hash);
  const value = encodeToken(owner, expiresAtMs);
  const keepMs = Math.ceil(expiresAtMs - nowMs) + SPACE_MS;
  return [{ kind: "value", key, value, keepMs }];
}
