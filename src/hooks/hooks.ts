// Creates the configured hooks. This module is loaded only if at least one hook is configured.

import type { ConnectHook, SendHook } from "../broker/hooks.ts";
import { loadHttpClient } from "../outgoing/outgoing.ts";
import { createConnectHook, MAX_CONNECT_ANSWER_BYTES } from "./connect-hook.ts";
import { HookCaller, type HookOutcome, type HookPorts, type HookSettings } from "./hook-caller.ts";
import { createSendHook, maxSendAnswerBytes } from "./send-hook.ts";

export type HookName = "connect" | "send";

export interface HooksSettings {
  readonly connect: HookSettings & { readonly forwardHeaders: readonly string[] };
  readonly send: HookSettings & { readonly channels: readonly string[] };
}

interface HooksPorts {
  readonly clock: () => number;
  readonly maxPayloadBytes: number;
  /** Called as in `HookPorts`, with the name of the hook. */
  onOutcome(hook: HookName, outcome: HookOutcome, ms: number | undefined): void;
  onFailure(hook: HookName, outcome: HookOutcome, detail: string): void;
  onOpened(hook: HookName): void;
}

export interface Hooks {
  readonly connect: ConnectHook | undefined;
  readonly send: SendHook | undefined;
  /** The configured hooks, for metrics. */
  readonly callers: ReadonlyMap<HookName, Pick<HookCaller, "pending" | "circuit">>;
  close(): Promise<void>;
}

export function createHooks(settings: HooksSettings, ports: HooksPorts): Hooks {
  const callers = new Map<HookName, HookCaller>();
  void loadHttpClient();

  function callerOf(name: HookName, maxReplyBytes: number): HookCaller | undefined {
    const { url } = settings[name];
    if (url === "") return undefined;
    const hookPorts: HookPorts = {
      clock: ports.clock,
      onOutcome: (outcome, ms) => ports.onOutcome(name, outcome, ms),
      onFailure: (outcome, detail) => ports.onFailure(name, outcome, detail),
      onOpened: () => ports.onOpened(name),
    };
    const caller = new HookCaller(settings[name], maxReplyBytes, hookPorts);
    callers.set(name, caller);
    return caller;
  }

  const connect = callerOf("connect", MAX_CONNECT_ANSWER_BYTES);
  const send = callerOf("send", maxSendAnswerBytes(ports.maxPayloadBytes));
  return {
    connect: connect && createConnectHook(connect, settings.connect.forwardHeaders),
    send: send && createSendHook(send, settings.send.channels),
    callers,

    async close() {
      await Promise.all([...callers.values()].map((caller) => caller.close()));
    },
  };
}
