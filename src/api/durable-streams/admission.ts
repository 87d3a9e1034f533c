// Decides who may use a stream of the Durable Streams protocol: a backend with a credential, the
// bearer of a signed URL, a user with a client token, or, in protected mode, a caller on this
// machine. State: the callers of the requests in progress.

import type { SentStream } from "../../broker/channel-logs.ts";
import type { LogName } from "../../broker/log-frame.ts";
import { GROUP_CHANNEL, SYSTEM_UID } from "../../broker/model.ts";
import type { SignedUrls } from "../../broker/signed-urls.ts";
import { networkOf } from "../../lib/network.ts";
import type { HttpReply, HttpRequest } from "../../transport/types.ts";
import { edgeReply, errorReply, thrownReply } from "../errors.ts";
import type { Guard, PageRule } from "../guard.ts";
import { createViewerReader, presentsToken } from "../stream-request.ts";
import { createViewerCheck, type Viewers } from "../viewers.ts";
import { type ChannelTarget, parseStreamPath, type StreamTarget, viewStream } from "./path.ts";

/** Kind of access that a call needs to its stream. */
export type StreamUse = "read" | "write" | "delete";

/**
 * Caller of a request, by kind:
 *
 *     anonymous  a caller on this machine, in protected mode
 *     backend    the bearer of a control-plane credential
 *     signed     the bearer of a signed URL
 *     viewer     a user with a client token
 */
export interface StreamCaller {
  readonly kind: "anonymous" | "backend" | "signed" | "viewer";
  /** User in whose name the caller acts, or `undefined` if the caller acts for no user. */
  readonly uid: string | undefined;
  /**
   * Identifies the bearer of a signed URL by the client network and the signature, to limit the
   * bearer's work. `undefined` for other callers.
   */
  readonly bearer: string | undefined;
}

/** A stream that an admitted request may use. */
export interface AdmittedStream {
  readonly name: LogName;
  readonly caller: StreamCaller;
  /** Percent-encoded path of the stream's URL. */
  readonly urlPath: string;
  /** The stream and its writer, or `undefined` if the stream does not belong to a channel. */
  readonly sent: SentStream | undefined;
}

export interface Admission {
  /**
   * Returns an error reply if the caller may not use the stream. Otherwise, records the caller for
   * the other methods and returns `undefined`.
   */
  admit(request: HttpRequest, guard: Guard, use: StreamUse): Promise<HttpReply | undefined>;
  streamOf(request: HttpRequest): AdmittedStream;
  /** Returns the log from which a request forks, or `undefined` if the caller may not read it. */
  sourceOf(request: HttpRequest, source: StreamTarget): Promise<LogName | undefined>;
  /**
   * Checks an admitted caller again. Returns an error reply if the caller may not continue to read.
   * Never rejects.
   */
  recheck(request: HttpRequest): Promise<HttpReply | undefined>;
}

interface AdmissionPorts {
  readonly signedUrls: Pick<SignedUrls, "verify">;
  /** Throws `rate_limited` if the bearer of a signed URL has used up the budget. */
  readonly requirePaid: (bearer: string) => void;
  readonly viewers: Omit<Viewers, "beginRead">;
  readonly admitsPage: PageRule;
}

interface Admitted {
  readonly target: StreamTarget;
  readonly stream: AdmittedStream;
  readonly use: StreamUse;
  readonly guard: Guard;
}

type Verdict = { readonly refusal: HttpReply } | { readonly caller: Omit<StreamCaller, "bearer"> };

const FREE_STREAMS_NEED_SIG =
  "Client tokens are not accepted for this stream; use a URL that a backend has signed with POST /v1/sign";
/** Statuses of the error replies to a caller who may not read a stream. */
const UNREADABLE: ReadonlySet<number> = new Set([401, 403, 404]);
const WRITERS_NEED_UID =
  "The URL was signed without from_uid, so its bearer cannot write to a channel; sign the path again with from_uid";

export function createAdmission(ports: AdmissionPorts): Admission {
  const { signedUrls, requirePaid, viewers, admitsPage } = ports;
  const admitted = new WeakMap<HttpRequest, Admitted>();
  const readViewer = createViewerReader();
  const checkViewer = createViewerCheck(viewers);

  function admittedOf(request: HttpRequest): Admitted {
    const entry = admitted.get(request);
    if (entry === undefined) throw new Error("The request was not admitted");
    return entry;
  }

  /**
   * Decides whether a signature allows the use of the stream. A wrong signature counts as a failed
   * attempt from the network of `address`, unless `address` is `undefined`.
   */
  async function judgeSignature(
    signature: string,
    { path, kind }: StreamTarget,
    { use, address }: { readonly use: StreamUse; readonly address: string | undefined },
  ): Promise<Verdict> {
    const { access, fromUid } = await signedUrls.verify(path, signature, address);
    const mayUse = use === "read" || (use === "write" && access === "write");
    if (!mayUse)
      return forbidden(
        use === "delete"
          ? "A signed URL does not allow DELETE; send a credential"
          : "The URL was signed for read access; sign the path again for write access",
      );
    if (kind === "channel" && use === "write" && fromUid === "") return forbidden(WRITERS_NEED_UID);
    return { caller: { kind: "signed", uid: fromUid || undefined } };
  }

  async function judgeViewer(
    request: HttpRequest,
    target: StreamTarget,
    { use, isFirst }: { readonly use: StreamUse; readonly isFirst: boolean },
  ): Promise<Verdict> {
    if (target.kind === "free") return forbidden(FREE_STREAMS_NEED_SIG);
    const result = readViewer(request);
    if ("refusal" in result) return { refusal: result.refusal };
    const { uid } = result.value;
    const viewed = viewStream(target, uid);
    if ("status" in viewed) return { refusal: viewed };
    const channel = { ...viewed.channel, use: use === "read" ? "read" : "send" } as const;
    const refusal = await checkViewer(request, { viewer: result.value, channel }, isFirst);
    return refusal === undefined ? { caller: { kind: "viewer", uid } } : { refusal };
  }

  async function judge(
    request: HttpRequest,
    { target, use, guard }: Omit<Admitted, "stream">,
    isFirst: boolean,
  ): Promise<Verdict> {
    const signature = signatureOf(request);
    if (signature !== undefined) {
      const address = isFirst ? request.remoteAddress : undefined;
      return judgeSignature(signature, target, { use, address });
    }
    if (presentsToken(request)) return judgeViewer(request, target, { use, isFirst });
    const access = use === "read" ? "streams:read" : "streams:write";
    const refusal = await guard(request, [access], admitsPage);
    if (refusal !== undefined) return { refusal };
    return { caller: backendOf(request, { target, use }) };
  }

  return {
    async admit(request, guard, use) {
      const parsed = parseStreamPath(request.path);
      if ("refusal" in parsed) return parsed.refusal;
      const { target } = parsed;
      // The address of a request cannot be read after the first await, unless it was read before.
      // `sourceOf` may need the address later.
      if ("stream-forked-from" in request.headers) void request.remoteAddress;
      const bearer = bearerOf(request);
      if (bearer !== undefined) requirePaid(bearer);
      const verdict = await judge(request, { target, use, guard }, true);
      if ("refusal" in verdict) return verdict.refusal;
      if (target.kind === "channel" && use === "delete")
        return edgeReply("method_not_allowed", { allow: "GET, HEAD, PUT, POST" });
      const stream = admittedStream(target, { ...verdict.caller, bearer });
      if ("status" in stream) return stream;
      admitted.set(request, { target, use, guard, stream });
      return undefined;
    },

    streamOf: (request) => admittedOf(request).stream,

    async sourceOf(request, source) {
      const { guard, stream } = admittedOf(request);
      const signature = request.headers["jindou-fork-sig"];
      try {
        const verdict = await (signature !== undefined
          ? judgeSignature(signature, source, { use: "read", address: request.remoteAddress })
          : judgeSource(request, { source, caller: stream.caller, guard }));
        if (verdict === undefined || "refusal" in verdict) return undefined;
        const { caller } = verdict;
        if (source.kind === "free") return source.name;
        const viewed = viewStream(source, caller.uid);
        return "status" in viewed ? undefined : viewed.name;
      } catch (error) {
        // An error with one of these statuses would reveal why the caller may not read the source.
        if (UNREADABLE.has(thrownReply(error).status)) return undefined;
        throw error;
      }
    },

    async recheck(request) {
      const { stream: _, ...entry } = admittedOf(request);
      try {
        const verdict = await judge(request, entry, false);
        return "refusal" in verdict ? verdict.refusal : undefined;
      } catch (error) {
        return thrownReply(error); // the reader reconnects and is checked again
      }
    },
  };

  /** Decides whether a caller who sent no signature for a fork's source may read the source. */
  async function judgeSource(
    request: HttpRequest,
    {
      source,
      caller,
      guard,
    }: { readonly source: StreamTarget; readonly caller: StreamCaller; readonly guard: Guard },
  ): Promise<Verdict | undefined> {
    if (presentsToken(request)) return judgeViewer(request, source, { use: "read", isFirst: true });
    if (caller.kind === "signed") return undefined;
    const refusal = await guard(request, ["streams:read"], admitsPage);
    return refusal === undefined ? { caller: { ...caller, uid: undefined } } : { refusal };
  }
}

/**
 * Returns a string that identifies the bearer of a signed URL: the client network and the
 * signature. Returns `undefined` for other callers. Must be called before the first await.
 */
function bearerOf(request: HttpRequest): string | undefined {
  const signature = signatureOf(request);
  return signature && `${networkOf(request.remoteAddress)} ${signature}`;
}

function forbidden(message: string): Verdict {
  return { refusal: errorReply("forbidden", { message }) };
}

function backendOf(
  request: HttpRequest,
  { target, use }: Pick<Admitted, "target" | "use">,
): Omit<StreamCaller, "bearer"> {
  const { authorization, token } = request.headers;
  const kind = authorization === undefined && token === undefined ? "anonymous" : "backend";
  if (target.kind === "free") return { kind, uid: undefined };
  const { "jindou-from": from = "" } = request.headers;
  if (use === "write") return { kind, uid: from || SYSTEM_UID };
  return { kind, uid: new URLSearchParams(request.query).get("uid") || undefined };
}

/** Returns the stream from the caller's point of view, or an error reply. */
function admittedStream(target: StreamTarget, caller: StreamCaller): AdmittedStream | HttpReply {
  const { urlPath } = target;
  if (target.kind === "free") return { name: target.name, caller, urlPath, sent: undefined };
  const viewed = viewStream(target, caller.uid);
  if ("status" in viewed) return viewed;
  const { name, channel } = viewed;
  return { name, caller, urlPath, sent: sentStream(target, channel, caller) };
}

function sentStream(
  { clientMsgNo }: ChannelTarget,
  channel: SentStream["channel"],
  { kind, uid }: StreamCaller,
): SentStream {
  const isBackend = kind === "backend" || kind === "anonymous";
  return { channel, clientMsgNo, fromUid: uid ?? SYSTEM_UID, isBackend };
}

/** Returns the group that an admitted viewer reads, or `undefined` for a personal channel. */
export function groupOf({ sent }: AdmittedStream): string | undefined {
  return sent?.channel.type === GROUP_CHANNEL ? sent.channel.id : undefined;
}

/** Returns the `sig` parameter, or `undefined` if it is absent. */
function signatureOf({ query }: HttpRequest): string | undefined {
  if (!query.includes("sig=")) return undefined; // saves the parsing in most requests
  return new URLSearchParams(query).get("sig") ?? undefined;
}
