// Decides who may use a stream of the protocol Durable Streams: a backend with a credential, the
// bearer of a signed URL, or, in protected mode, a caller on this machine. State: the callers of the
// requests in progress.

import type { SignedUrls } from "../../broker/signed-urls.ts";
import { networkOf } from "../../lib/network.ts";
import type { HttpReply, HttpRequest } from "../../transport/types.ts";
import { errorReply, thrownReply } from "../errors.ts";
import type { Guard, PageRule } from "../guard.ts";
import { presentsToken } from "../stream-request.ts";
import { parseStreamPath, type StreamTarget } from "./path.ts";

/** Action of a call on its stream. */
export type StreamUse = "read" | "write" | "delete";

/**
 * Kind of the caller.
 *
 *     anonymous  a caller on this machine, in protected mode
 *     backend    the bearer of a credential of the control plane
 *     signed     the bearer of a signed URL
 */
export interface StreamCaller {
  readonly kind: "anonymous" | "backend" | "signed";
  /**
   * Identifies the bearer of a signed URL, whose work is limited: the client network and the
   * signature. `undefined` for other callers.
   */
  readonly bearer: string | undefined;
}

export interface Admission {
  /** Returns the reply to a caller who may not use the stream, and remembers other callers. */
  admit(request: HttpRequest, guard: Guard, use: StreamUse): Promise<HttpReply | undefined>;
  /** Returns the stream that an admitted request names. */
  targetOf(request: HttpRequest): StreamTarget;
  callerOf(request: HttpRequest): StreamCaller;
  /** Returns whether the caller of an admitted request may also read this stream. */
  mayReadSource(request: HttpRequest, source: StreamTarget): Promise<boolean>;
  /** Returns whether an admitted caller may continue to read. Never rejects. */
  stillAdmits(request: HttpRequest): Promise<boolean>;
}

interface AdmissionPorts {
  readonly signedUrls: Pick<SignedUrls, "verify">;
  /** Throws `rate_limited` if the bearer of a signed URL has used up the budget. */
  readonly requirePaid: (bearer: string) => void;
  readonly admitsPage: PageRule;
}

interface Admitted {
  readonly target: StreamTarget;
  readonly caller: StreamCaller;
  readonly guard: Guard;
}

const FREE_STREAMS_NEED_SIG =
  "A client's token is not valid for this stream; use a URL that a backend has signed with POST /v1/sign";

export function createAdmission(ports: AdmissionPorts): Admission {
  const { signedUrls, requirePaid, admitsPage } = ports;
  const admitted = new WeakMap<HttpRequest, Admitted>();

  function admittedOf(request: HttpRequest): Admitted {
    const entry = admitted.get(request);
    if (entry === undefined) throw new Error("The request was not admitted");
    return entry;
  }

  async function judgeSignature(
    signature: string,
    { path }: StreamTarget,
    use: StreamUse,
  ): Promise<HttpReply | undefined> {
    const { access } = await signedUrls.verify(path, signature);
    if (use === "read" || (use === "write" && access === "write")) return undefined;
    return errorReply("forbidden", {
      message:
        use === "delete"
          ? "A signed URL does not allow DELETE; send a credential"
          : "The URL is signed for reading only",
    });
  }

  async function judge(
    request: HttpRequest,
    guard: Guard,
    { target, use }: { readonly target: StreamTarget; readonly use: StreamUse },
  ): Promise<HttpReply | undefined> {
    const signature = signatureOf(request);
    if (signature !== undefined) return judgeSignature(signature, target, use);
    if (presentsToken(request)) return errorReply("forbidden", { message: FREE_STREAMS_NEED_SIG });
    return guard(request, [use === "read" ? "streams:read" : "streams:write"], admitsPage);
  }

  return {
    async admit(request, guard, use) {
      const parsed = parseStreamPath(request.path);
      if ("refusal" in parsed) return parsed.refusal;
      const { target } = parsed;
      const caller = callerOf(request);
      if (caller.bearer !== undefined) requirePaid(caller.bearer);
      const verdict = await judge(request, guard, { target, use });
      if (verdict === undefined) admitted.set(request, { target, guard, caller });
      return verdict;
    },

    targetOf: (request) => admittedOf(request).target,
    callerOf: (request) => admittedOf(request).caller,

    async mayReadSource(request, source) {
      const { guard, caller } = admittedOf(request);
      const signature = request.headers["jindou-fork-sig"];
      try {
        if (signature !== undefined)
          return (await judgeSignature(signature, source, "read")) === undefined;
        if (caller.kind === "signed") return false;
        return (await guard(request, ["streams:read"], admitsPage)) === undefined;
      } catch (error) {
        if (thrownReply(error).status === 401) return false;
        throw error;
      }
    },

    async stillAdmits(request) {
      const { target, guard } = admittedOf(request);
      try {
        return (await judge(request, guard, { target, use: "read" })) === undefined;
      } catch {
        return false; // the reader reconnects and is checked again
      }
    },
  };
}

function callerOf(request: HttpRequest): StreamCaller {
  const signature = signatureOf(request);
  if (signature !== undefined)
    return { kind: "signed", bearer: `${networkOf(request.remoteAddress)} ${signature}` };
  const { authorization, token } = request.headers;
  const isAnonymous = authorization === undefined && token === undefined;
  return { kind: isAnonymous ? "anonymous" : "backend", bearer: undefined };
}

/** Returns the parameter `sig`, or `undefined`. */
function signatureOf({ query }: HttpRequest): string | undefined {
  if (!query.includes("sig=")) return undefined; // most requests: no parsing
  return new URLSearchParams(query).get("sig") ?? undefined;
}
