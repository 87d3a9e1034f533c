// A user of the format scenarios logs in, and is refused.

import type { Test } from "tap";
import type { World } from "../world.ts";
import { type Format, type FormatClient, type FormatConnect, FormatRefusal } from "./format.ts";

/** Registers the user, unless a token is given, and connects it. */
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
  const port = world.clientPort;
  const client = await format.connect(t, { token, ...connect, uid, port });
  await world.following();
  return client;
}

/** How a connect or a send is refused; rejects when it is not. */
export async function refusedAs(request: Promise<unknown>): Promise<FormatRefusal> {
  const error = await request.then(
    () => undefined,
    (refusal: unknown) => refusal,
  );
  if (error instanceof FormatRefusal) return error;
  throw error ?? new Error("it was not refused");
}
