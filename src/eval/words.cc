#include "eval/words.h"

#include "eval/sentences.h"

namespace kvarto {
namespace {

using Word = std::string_view;

constexpr Word kFirstNames[] = {
    "Anna",   "Ben",    "Clara",  "David",  "Emma",   "Felix",  "Grace",  "Henry", "Irene",  "Jacob",
    "Karen",  "Lucas",  "Maria",  "Nathan", "Olivia", "Peter",  "Quinn",  "Rosa",  "Simon",  "Teresa",
    "Ursula", "Victor", "Wanda",  "Xavier", "Yvonne", "Zoe",    "Adam",   "Bella", "Carl",   "Diana",
    "Edgar",  "Fiona",  "Gavin",  "Hannah", "Ivan",   "Julia",  "Kevin",  "Laura", "Martin", "Nora",
    "Oscar",  "Paula",  "Ralph",  "Sophie", "Thomas", "Vera",   "Walter", "Agnes", "Boris",  "Cecil",
    "Dora",   "Ernest", "Frieda", "George", "Hilda",  "Isaac",  "Judith", "Kurt",  "Linda",  "Marcus",
    "Nina",   "Otto",   "Pamela", "Robert", "Sandra", "Tobias", "Vivian", "Wendy", "Alfred", "Bridget"};

constexpr Word kLastNames[] = {"Keller",    "Hart",    "Vance",   "Sutton",  "Bowen",  "Carver",  "Doyle",   "Ellis",
                               "Foster",    "Garner",  "Holt",    "Ingram",  "Jarvis", "Knox",    "Lowell",  "Mercer",
                               "Norton",    "Osborne", "Palmer",  "Quigley", "Reeves", "Sawyer",  "Tanner",  "Usher",
                               "Vickers",   "Warner",  "Yates",   "Zeller",  "Abbott", "Barlow",  "Cobb",    "Dalton",
                               "Emerson",   "Finch",   "Gibbs",   "Harmon",  "Irwin",  "Jensen",  "Kemp",    "Langley",
                               "Maddox",    "Nolan",   "Olsen",   "Pratt",   "Quill",  "Rowland", "Shelton", "Thorpe",
                               "Underhill", "Varga",   "Whitman", "Yorke",   "Zimmer", "Ames",    "Brandt",  "Conway",
                               "Duncan",    "Eckhart", "Fowler",  "Grady",   "Hobbs",  "Ivers",   "Joyner",  "Kirby"};

constexpr Word kObjects[] = {"lantern", "kettle",  "basket",   "hammer",   "ladder",    "mirror",  "blanket", "bucket",
                             "pitcher", "candle",  "teapot",   "pillow",   "saddle",    "trumpet", "violin",  "banjo",
                             "barrel",  "wagon",   "clock",    "carpet",   "cushion",   "drum",    "goblet",  "feather",
                             "flute",   "funnel",  "glove",    "helmet",   "jacket",    "jar",     "kite",    "magnet",
                             "napkin",  "medal",   "notebook", "paddle",   "parcel",    "pencil",  "piano",   "puppet",
                             "quilt",   "razor",   "ribbon",   "rope",     "ruler",     "scarf",   "shovel",  "sieve",
                             "spoon",   "stamp",   "statue",   "suitcase", "telescope", "thimble", "ticket",  "tripod",
                             "parasol", "vase",    "wallet",   "whistle",  "pulley",    "zipper",  "chisel",  "bottle",
                             "cabinet", "curtain", "camera",   "cradle",   "guitar",    "hinge",   "locket",  "marble"};

constexpr Word kAdjectives[] = {
    "broken",   "heavy",   "dusty",   "polished", "narrow",  "weathered", "crooked", "gentle",  "hollow",  "painted",
    "rusty",    "simple",  "tiny",    "wide",     "pretty",  "bright",    "careful", "damp",    "rugged",  "famous",
    "grand",    "humble",  "perfect", "jolly",    "keen",    "lively",    "modest",  "neat",    "strange", "plain",
    "quiet",    "rough",   "smooth",  "tidy",     "useful",  "vivid",     "warm",    "sturdy",  "clever",  "dented",
    "graceful", "faded",   "glossy",  "handmade", "massive", "noble",     "patient", "rare",    "silent",  "slender",
    "spotless", "striped", "tangled", "tall",     "velvet",  "wooden",    "woven",   "chipped", "folded",  "borrowed",
    "curious",  "foreign", "genuine", "humming",  "mended",  "shallow"};

constexpr Word kColours[] = {"red",    "blue",  "green", "yellow", "purple",  "tan",       "brown",   "black",
                             "white",  "grey",  "pink",  "golden", "silver",  "turquoise", "crimson", "violet",
                             "maroon", "beige", "navy",  "teal",   "scarlet", "cream"};

constexpr Word kPlaces[] = {
    "Linden",    "Harrow",   "Marlow",    "Ashby",    "Brookfield", "Castleton",  "Danmere",   "Eastwick",
    "Fernley",   "Glenmoor", "Hartwell",  "Inverley", "Kingsford",  "Lakehurst",  "Millbrook", "Northgate",
    "Oakham",    "Pinewood", "Queensby",  "Redhill",  "Thornbury",  "Upton",      "Valemont",  "Westbourne",
    "Yarrow",    "Alderton", "Birchley",  "Drayton",  "Elmstead",   "Foxcombe",   "Greenford", "Hollowell",
    "Kelston",   "Longmead", "Meadowby",  "Netherby", "Orston",     "Penrose",    "Quarndon",  "Rosedale",
    "Saltmarsh", "Tidewell", "Underwood", "Velden",   "Wexcombe",   "Zellwood",   "Amberley",  "Bellmore",
    "Cranleigh", "Dunmore",  "Everby",    "Farleigh", "Gatewick",   "Highcliff",  "Islip",     "Jesmond",
    "Kirkdale",  "Lowick",   "Morden",    "Norwick",  "Coldwater",  "Stonefield", "Whitsand",  "Ravenby"};

constexpr Word kProfessions[] = {
    "baker",    "carpenter", "dentist",  "farmer",     "gardener",  "librarian", "mechanic",   "nurse",
    "painter",  "pilot",     "plumber",  "potter",     "sailor",    "singer",    "tailor",     "teacher",
    "weaver",   "chemist",   "cook",     "driver",     "florist",   "judge",     "lawyer",     "miller",
    "miner",    "porter",    "printer",  "shepherd",   "surgeon",   "waiter",    "welder",     "writer",
    "barber",   "brewer",    "clerk",    "diver",      "goldsmith", "joiner",    "locksmith",  "mason",
    "merchant", "messenger", "novelist", "postman",    "ranger",    "roofer",    "sculptor",   "beekeeper",
    "tiler",    "typist",    "vet",      "watchmaker", "geologist", "botanist",  "biologist",  "historian",
    "dancer",   "juggler",   "glazier",  "conductor",  "violinist", "physicist", "translator", "cobbler"};

constexpr Word kDepartments[] = {"Harbour", "Meadow", "Granite", "Falcon", "Juniper", "Saffron", "Walnut",  "Marble",
                                 "Thunder", "Orchid", "Pepper",  "Velvet", "Lagoon",  "Canyon",  "Beacon",  "Cobalt",
                                 "Maple",   "Raven",  "Willow",  "Quartz", "Bamboo",  "Comet",   "Glacier", "Ivory",
                                 "Jasmine", "Lotus",  "Mango",   "Nectar", "Otter",   "Prairie", "Summit",  "Tiger"};

constexpr Word kDays[] = {"Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"};
constexpr Word kMonths[] = {"January", "February", "March",     "April",   "May",      "June",
                            "July",    "August",   "September", "October", "November", "December"};
constexpr Word kCounts[] = {"two",  "three", "four",   "five",   "six",    "seven", "eight",
                            "nine", "ten",   "eleven", "twelve", "twenty", "thirty"};

Words words_of(char slot) {
  switch (slot) {
    case 'n':
      return kFirstNames;
    case 'p':
      return kPlaces;
    case 'c':
      return kColours;
    case 'a':
      return kAdjectives;
    case 'j':
      return kProfessions;
    case 'd':
      return kDays;
    case 'm':
      return kMonths;
    case 'q':
      return kCounts;
    default:
      return kObjects;
  }
}

// Words that a sentence has already are not drawn again: "Anna met Anna".
std::string sentence(std::string_view pattern, SplitMix& random) {
  std::string used = " ";
  return filled(pattern, [&](char slot) {
    std::string word;
    do {
      word = any(words_of(slot), random);
    } while (used.find(" " + word + " ") != std::string::npos);
    used += word + " ";
    return word;
  });
}

std::vector<size_t> shuffled(size_t size, SplitMix& random) {
  std::vector<size_t> order(size);
  for (size_t i = 0; i < size; ++i) order[i] = i;
  random.shuffle(order);
  return order;
}

}  // namespace

Words first_names() { return kFirstNames; }
Words last_names() { return kLastNames; }
Words objects() { return kObjects; }
Words adjectives() { return kAdjectives; }
Words colours() { return kColours; }
Words places() { return kPlaces; }
Words professions() { return kProfessions; }
Words departments() { return kDepartments; }

std::string_view any(Words words, SplitMix& random) { return words[random.below(words.size())]; }

std::string filled(std::string_view pattern, const std::function<std::string(char slot)>& word) {
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '{' && i + 2 < pattern.size()) {
      out += word(pattern[i + 1]);
      i += 2;
    } else {
      out += pattern[i];
    }
  }
  return out;
}

std::string Filler::next() {
  constexpr int kTries = 32;                 // to find words with which a sentence is new
  constexpr int64_t kFewest = 4, kMost = 7;  // sentences of a paragraph
  if (subjects_.empty()) subjects_ = shuffled(kSubjects, random_);
  if (order_.empty()) {
    for (size_t i : shuffled(kSentences, random_)) order_.push_back(subjects_.back() * kSentences + i);
    order_.resize(static_cast<size_t>(random_.between(kFewest, kMost)));
    subjects_.pop_back();
  }
  const std::string_view pattern = sentence_patterns()[order_.back()];
  order_.pop_back();
  std::string text = sentence(pattern, random_);
  for (int i = 0; i < kTries && !written_.insert(text).second; ++i) text = sentence(pattern, random_);
  return text;
}

std::vector<std::string> filler_pieces(SplitMix random, size_t count) {
  Filler filler(random);
  std::vector<std::string> pieces;
  pieces.reserve(count);
  while (pieces.size() < count) {
    const char gap = filler.opens_paragraph() && !pieces.empty() ? '\n' : ' ';
    pieces.push_back(gap + filler.next());
  }
  return pieces;
}

std::vector<std::string> filler_sentences(SplitMix random, size_t count) {
  Filler filler(random);
  std::vector<std::string> sentences(count);
  for (std::string& each : sentences) each = filler.next();
  return sentences;
}

std::string among_filler(std::span<const std::string> lines, std::span<const std::string> sentences,
                         std::string_view mark) {
  std::string text;
  size_t next = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    text += lines[i];
    const size_t end = sentences.size() * (i + 1) / lines.size();
    if (next == end) continue;
    text += mark;
    for (; next < end; ++next) text += " " + sentences[next];
    text += "\n";
  }
  return text;
}

}  // namespace kvarto
