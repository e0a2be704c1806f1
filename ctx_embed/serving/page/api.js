// Speaks with the server. Every failure is an ApiError with one line for people.

const KEY = "ctx-embed.key";
const TRIES = 3;
const LONGEST_WAIT = 10;
let key = null;
try {
  key = sessionStorage.getItem(KEY);
} catch {
  // Storage may be blocked; the key then lasts until the page is closed.
}
let onbusy = () => {};

/** A failed request: its HTTP status (0 if the server did not answer) and a message. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Set a function that is called with the seconds that a request waits because the server is busy. */
export const whenBusy = (listener) => {
  onbusy = listener;
};

/** Return whether a key is set. */
export const hasKey = () => key !== null;

/** Use and remember a key until the browser's tab is closed; null forgets it. */
export function setKey(value) {
  key = value || null;
  try {
    if (key === null) sessionStorage.removeItem(KEY);
    else sessionStorage.setItem(KEY, key);
  } catch {
    // See above.
  }
}

const sleep = (seconds, signal) =>
  new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, 1000 * seconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });

/**
 * Return the JSON answer of the server: GET without a body, POST with one.
 * @param {string} path below v1/
 * @param {object} [body]
 * @param {AbortSignal} [signal]
 */
export async function request(path, body, signal) {
  for (let tries = 1; ; tries += 1) {
    const headers = key === null ? {} : { Authorization: `Bearer ${key}` };
    if (body !== undefined) headers["Content-Type"] = "application/json";
    let response;
    try {
      response = await fetch(`v1/${path}`, {
        method: body === undefined ? "GET" : "POST",
        headers,
        body: body === undefined ? undefined : JSON.stringify(body),
        signal,
        cache: "no-store",
        credentials: "same-origin",
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError(0, "The server does not answer. Check that it is still running, then try again.");
    }
    const answer = await response.json().catch((error) => {
      if (error.name === "AbortError") throw error;
      return null;
    });
    if (response.ok && answer !== null) return answer;
    const wait = Number(response.headers.get("Retry-After"));
    if ((response.status === 429 || response.status === 503) && tries < TRIES && wait <= LONGEST_WAIT) {
      onbusy(Math.max(wait, 1));
      await sleep(Math.max(wait, 1), signal);
      continue;
    }
    throw new ApiError(response.status, answer?.error?.message ?? `The server answered with status ${response.status}.`);
  }
}

/** Return the answer of a route of one index. */
export const ofIndex = (index, route, body, signal) => request(`indexes/${encodeURIComponent(index)}/${route}`, body, signal);
