// Connects a user of the format scenarios, and inspects refusals.

import type { Test } from "tap";
import type { World } from "../world.ts";
import { type Format, type FormatClient, type FormatConnect, FormatRefusal } from "./format.ts";

/** Connects a user. Registers the user first unless a token is given. */
export async function joinFormat(
  t: Test,
  world: World,
  format: Format,
  uid: string,
  options: Partial<FormatConnect> & { level?: 0 | 1 } = {},
): Promise<FormatClient> {
  const { level = 0, ...connect } = options;
  if (connect.token === undefined) await world.register(uid, { level });
  const token = `token-${uid}`;
  const port = format.portOf(world);
  const client = await format.connect(t, { token, ...connect, uid, port });
  await world.untilSubscribed();
  return client;
}

/** Returns the refusal of a connect or send. Rejects if it is not refused. */
export async function refusalOf(request: Promise<unknown>): Promise<FormatRefusal> {
  const error = await request.then(
    () => undefined,
    (refusal: unknown) => refusal,
  );
  if (error instanceof FormatRefusal) return error;
  throw error ?? new Error("the request was not refused");
}
