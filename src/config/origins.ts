// Checks the entries of `client.allowedOrigins`. An entry that matches no origin sent by browsers
// would allow nothing, and the operator would notice the mistake only in production.

/**
 * Value of the `Origin` header for pages without an origin, such as local files and sandboxed
 * frames.
 */
export const NO_ORIGIN = "null";

/** Schemes that are never part of a page's origin, with the scheme to suggest instead. */
const NOT_PAGES: ReadonlyMap<string, string> = new Map([
  ["ws", "http"],
  ["wss", "https"],
]);
const ORIGIN = /^([a-z][a-z0-9+.-]*):\/\/([^/\s*@?#]+)$/i;
const HOST_PATTERN = /^\*\.(.+)$/;

/**
 * Returns why the entry cannot match an origin that a browser sends, or `undefined` if it can. The
 * caller puts "… contains <entry>," before the text.
 */
export function originProblem(entry: string): string | undefined {
  if (entry === NO_ORIGIN) return undefined;
  const [, host] = HOST_PATTERN.exec(entry) ?? [];
  if (host !== undefined) {
    const sent = URL.canParse(`https://${host}`) ? new URL(`https://${host}`).host : "";
    return /^[a-z0-9.-]+$/.test(sent) ? useInstead(entry, `*.${sent}`) : NEITHER;
  }
  const [, scheme = "", authority = ""] = ORIGIN.exec(entry) ?? [];
  const page = NOT_PAGES.get(scheme.toLowerCase());
  if (page !== undefined) return useInstead(entry, `${page}://${authority}`);
  if (scheme.toLowerCase() === "file") return useInstead(entry, NO_ORIGIN);
  if (/^https?:\/\/[^*]+$/i.test(entry) && URL.canParse(entry))
    return useInstead(entry, new URL(entry).origin);
  const isAppOrigin = scheme !== "" && !/^https?$/i.test(scheme);
  return isAppOrigin ? undefined : NEITHER;
}

const NEITHER =
  "which is neither an origin like https://chat.example.com nor a host pattern like *.example.com";

function useInstead(entry: string, sent: string): string | undefined {
  if (entry.toLowerCase() === sent.toLowerCase()) return undefined;
  return `which no browser sends; write ${sent}`;
}
