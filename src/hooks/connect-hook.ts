// The hook that is called before a client logs in, refreshes its token, or uses a stream over HTTP.
// It can only refuse the client or restrict it.

import { BrokerError } from "../broker/errors.ts";
import type { ConnectAttempt, ConnectHook, Restrictions } from "../broker/hooks.ts";
import { LATEST_TIME_MS } from "../broker/model.ts";
import { parseRights } from "../broker/rights.ts";
import type { HookCaller } from "./hook-caller.ts";

const UNRESTRICTED: Restrictions = {
  isSecondary: false,
  expiresAtMs: undefined,
  rights: undefined,
};

export const MAX_CONNECT_ANSWER_BYTES = 65_536;

export function createConnectHook(
  caller: Pick<HookCaller, "ask">,
  forwardHeaders: readonly string[],
): ConnectHook {
  const headers = [...new Set(forwardHeaders.map((name) => name.toLowerCase()))];
  return {
    headers,

    async ask(attempt) {
      const { uid } = attempt;
      const question = { type: attempt.isRefresh ? "refresh" : "connect", data: dataOf(attempt) };
      const restrictions = await caller.ask(uid, question, (answer) => read(answer, uid));
      return restrictions ?? UNRESTRICTED;
    },
  };
}

function dataOf(attempt: ConnectAttempt): object {
  const { uid, token, flag, deviceId, address, origin, headers, format } = attempt;
  return {
    ...{ uid, token, device_flag: flag, device_id: deviceId },
    ...{ address, origin, headers, format },
  };
}

/**
 * Returns the restrictions in the hook's reply. Throws an `Error` if the reply does not have the
 * documented form, or `refused_by_hook` if it names a different uid.
 */
function read(answer: Readonly<Record<string, unknown>>, uid: string): Restrictions {
  const {
    device_level: level = null,
    expires_at: expiresAtS = null,
    uid: named = null,
    jd,
  } = answer;
  if (named !== null && named !== uid)
    throw new BrokerError("refused_by_hook", {
      message: "The backend identified the client as a different user",
    });
  if (level !== null && level !== 0 && level !== 1)
    throw new Error("device_level in the response must be 0 or 1");
  if (expiresAtS !== null && !isTimeS(expiresAtS))
    throw new Error("expires_at in the response must be a Unix time in whole seconds");
  return {
    isSecondary: level === 0,
    expiresAtMs: expiresAtS === null ? undefined : expiresAtS * 1000,
    rights: parseRights(jd),
  };
}

function isTimeS(value: unknown): value is number {
  return Number.isInteger(value) && Number(value) > 0 && Number(value) * 1000 <= LATEST_TIME_MS;
}
